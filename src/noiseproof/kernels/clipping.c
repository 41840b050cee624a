/* Clipping: the norms of records' gradients, and their errors scaled by them, without a gradient being written out. */
#include "kernels.h"
#include "vectors.h"

#include <math.h>

#define LARGE (1 << 16) /* numbers from which on several threads are faster than one */
#define STRIP 128       /* columns that are summed at a time */

#define SWAP(a, by) __builtin_shufflevector(a, a, 0 ^ by, 1 ^ by, 2 ^ by, 3 ^ by, 4 ^ by, 5 ^ by, 6 ^ by, 7 ^ by)

HELPER float sum_of(floats all) {
    all += SWAP(all, 4);
    all += SWAP(all, 2);
    all += SWAP(all, 1);
    return all[0];
}

HELPER float squared_length(const float *row, int64_t columns) {
    floats one = {0}, other = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= columns; i += 2 * LANES) {
        floats first = load(row + i), second = load(row + i + LANES);
        one += first * first;
        other += second * second;
    }
    float total = sum_of(one + other);
    for (; i < columns; i++) total += row[i] * row[i];
    return total;
}

CLONED static float squared_norm(const Layer *layers, int count, int64_t record) {
    float total = 0;
    for (const Layer *layer = layers; layer < layers + count; layer++) {
        float factor = layer->sums ? 1 : 0;
        if (layer->activations) {
            factor += squared_length(layer->activations + record * layer->activation_columns, layer->activation_columns);
        }
        total += factor * squared_length(layer->errors + record * layer->error_columns, layer->error_columns);
    }
    return total;
}

CLONED static void weigh(const Layer *layer, int64_t records, const float *weights, int64_t first) {
    const int64_t columns = layer->error_columns, here = columns - first < STRIP ? columns - first : STRIP;
    float sums[STRIP] = {0};
    for (int64_t record = 0; record < records; record++) {
        const float *restrict old = layer->errors + record * columns + first;
        const float weight = weights[record];
        if (layer->scaled) {
            float *restrict new = layer->scaled + record * columns + first;
            for (int64_t i = 0; i < here; i++) new[i] = weight * old[i];
        }
        for (int64_t i = 0; i < here; i++) sums[i] += weight * old[i];
    }
    if (layer->sums) memcpy(layer->sums + first, sums, (size_t)here * sizeof *sums);
}

int clip_layers(const Layer *layers, int count, int64_t records, float clip, float share, float *weights) {
    int64_t width = 0;
    int positive = 1;
    for (int i = 0; i < count; i++) width += layers[i].error_columns + layers[i].activation_columns;
#pragma omp parallel for schedule(static) reduction(&& : positive) if (records * width >= LARGE)
    for (int64_t record = 0; record < records; record++) {
        /* A hair below, so that rounding of the norm cannot push a record over (clip_weights does the same). */
        const float weight = clip * share * (1 - 1e-5f) / sqrtf(squared_norm(layers, count, record));
        weights[record] = weight > share ? share : weight;
        positive = positive && weights[record] > 0;
    }
    if (!positive) return 0;
    for (int i = 0; i < count; i++) {
        const int64_t columns = layers[i].error_columns;
#pragma omp parallel for schedule(static) if (columns > STRIP && records * columns >= LARGE)
        for (int64_t first = 0; first < columns; first += STRIP) weigh(layers + i, records, weights, first);
    }
    return 1;
}
