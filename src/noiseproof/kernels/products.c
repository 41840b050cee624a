/* Products: sums of weighed outer products, and inner products of every record's own vectors; see products.h for how. */
#include "products.h"
#include "kernels.h"

#include <stdlib.h>

#define MANY (1 << 19) /* multiplications from which on several threads are faster than one */
#define NARROW 1024      /* columns up to which rows stay in the processor's cache, and are read again for every block */
#define BLOCK 64         /* columns that are weighed at a time then: of more, their copy would show in a small network's memory */

int has_wide_normals(void); /* wide_normals.c */

/* wide_products.c */
void add_wide_products(const float *packed, int64_t first, int64_t last, int64_t high, const float *rows, int64_t wide,
                       int64_t panel, int64_t depth, int more, float *out);
void wide_inner_products(const float *rows, int64_t count, int64_t stride, int64_t wide, float *out);

CLONED static void add_short_products(const float *packed, int64_t first, int64_t last, int64_t high, const float *rows,
                                      int64_t wide, int64_t panel, int64_t depth, int more, float *out) {
    add_products(packed, first, last, high, rows, wide, panel, depth, more, out);
}

/* A tile of `depth` rows of errors from record `start` on, weighed, for `add_products`; and their sums. */
CLONED static void pack(const Layer *layer, int64_t start, int64_t depth, const float *weights, int64_t first, int size,
                        float *packed) {
    const int64_t columns = layer->error_columns, here = columns - first < size ? columns - first : size;
    float sums[2 * TILE] = {0};
    for (int64_t record = start; record < start + depth; record++, packed += size) {
        const float *old = layer->errors + record * columns + first;
        for (int64_t i = 0; i < here; i++) packed[i] = weights[record] * old[i];
        for (int64_t i = here; i < size; i++) packed[i] = 0;
        for (int64_t i = 0; i < here; i++) sums[i] += packed[i];
    }
    for (int64_t i = 0; layer->sums && i < here; i++) layer->sums[first + i] = sums[i] + (start ? layer->sums[first + i] : 0);
}

int sum_products(const Layer *layer, int64_t records, const float *weights) {
    const int long_vectors = has_wide_normals(), size = long_vectors ? 2 * TILE : TILE;
    const int64_t high = layer->error_columns, wide = layer->activation_columns, tiles = (high + size - 1) / size;
    const int64_t panels = (wide + 6 * size - 1) / (6 * size); /* a panel has three vectors, a tile half of one */
    const int64_t most = wide <= NARROW && BLOCK / size < tiles ? BLOCK / size : tiles;
    float *packed = malloc((size_t)(most * size * (records < DEPTH ? records : DEPTH)) * sizeof *packed);
    if (!packed) return 0;
#pragma omp parallel if (records * high * wide >= MANY)
    for (int64_t block = 0; block < tiles; block += most) {
        const int64_t here = tiles - block < most ? tiles - block : most, column = block * size;
        for (int64_t start = 0; start < records; start += DEPTH) {
            const int64_t depth = records - start < DEPTH ? records - start : DEPTH;
#pragma omp for schedule(static)
            for (int64_t tile = 0; tile < here; tile++) {
                pack(layer, start, depth, weights, column + tile * size, size, packed + tile * size * depth);
            }
#pragma omp for schedule(static)
            for (int64_t half = 0; half < 2 * panels; half++) { /* halves, so that threads have equal shares */
                const int64_t first = half % 2 ? here / 2 : 0, last = half % 2 ? here : here / 2;
                (long_vectors ? add_wide_products : add_short_products)(packed, first, last, high - column,
                                                                        layer->activations + start * wide, wide, half / 2,
                                                                        depth, start > 0, layer->products + column * wide);
            }
        }
    }
    free(packed);
    return 1;
}

CLONED static void pack_turned(const float *rows, int64_t count, int64_t deep, int64_t start, int64_t depth, int size,
                               float *packed) {
    for (int64_t i = 0; i < depth; i++, packed += size) {
        for (int64_t row = 0; row < size; row++) packed[row] = row < count ? rows[row * deep + start + i] : 0;
    }
}

int64_t room_to_multiply(int64_t count) { return (count + 2 * TILE) * DEPTH; }

void multiply_block(const float *rows, int64_t count, int64_t deep, const float *matrix, int64_t wide, float *packed,
                    float *out) {
    const int long_vectors = has_wide_normals(), size = long_vectors ? 2 * TILE : TILE;
    const int64_t tiles = (count + size - 1) / size;
    for (int64_t start = 0; start < deep; start += DEPTH) {
        const int64_t depth = deep - start < DEPTH ? deep - start : DEPTH;
        for (int64_t tile = 0; tile < tiles; tile++) {
            pack_turned(rows + tile * size * deep, count - tile * size, deep, start, depth, size, packed + tile * size * depth);
        }
        for (int64_t panel = 0; panel < wide / (6 * size); panel++) {
            (long_vectors ? add_wide_products : add_short_products)(packed, 0, tiles, count, matrix + start * wide, wide, panel,
                                                                    depth, start > 0, out);
        }
    }
}

CLONED static void short_inner_products(const float *rows, int64_t count, int64_t stride, int64_t wide, float *out) {
    inner_products(rows, count, stride, wide, out);
}

void multiply_rows(const float *vectors, int64_t records, int64_t record_stride, int64_t count, int64_t stride, int64_t wide,
                   float *out) {
    const int long_vectors = has_wide_normals();
#pragma omp parallel for schedule(static) if (records * count * count * wide >= MANY)
    for (int64_t record = 0; record < records; record++) {
        (long_vectors ? wide_inner_products : short_inner_products)(vectors + record * record_stride, count, stride, wide,
                                                                    out + record * count * count);
    }
}
