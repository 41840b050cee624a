/* Histories of correlated noise: several steps' weighted sums of the same rows, so that memory is read once for all of them. */
#include "kernels.h"
#include "vectors.h"

#define PIECE (1 << 12) /* coordinates that a thread takes at once */

CLONED static void sum_piece(float *rows, int64_t count, int64_t size, const float *weights, const int64_t *places, int sums,
                             int64_t from, int64_t to) {
    int64_t i = from;
    for (; i + LANES <= to; i += LANES) {
        floats sum[MOST_SUMS] = {{0}};
        for (int64_t row = 0; row < count; row++) {
            const floats here = load(rows + row * size + i);
            for (int k = 0; k < MOST_SUMS; k++) sum[k] += weights[k * count + row] * here;
        }
        for (int k = 0; k < sums; k++) store(rows + places[k] * size + i, sum[k]);
    }
    for (; i < to; i++) {
        float sum[MOST_SUMS] = {0};
        for (int64_t row = 0; row < count; row++) {
            for (int k = 0; k < MOST_SUMS; k++) sum[k] += weights[k * count + row] * rows[row * size + i];
        }
        for (int k = 0; k < sums; k++) rows[places[k] * size + i] = sum[k];
    }
}

void sum_rows(float *rows, int64_t count, int64_t size, const float *weights, const int64_t *places, int sums) {
    const int64_t pieces = (size + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static) if (pieces > 8)
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t from = piece * PIECE, to = from + PIECE < size ? from + PIECE : size;
        sum_piece(rows, count, size, weights, places, sums, from, to);
    }
}
