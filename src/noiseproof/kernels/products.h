/* Sums of outer products of two matrices' rows, one of which is weighed: clipping.c has this with short vectors, wide_products.c
 * with long ones.
 *
 * Both matrices lie the way that a sum over rows reads them, so that nothing is turned or copied but the weighed one. A tile of
 * the result stays in the processor's registers while the rows go by.
 */
#ifndef NOISEPROOF_PRODUCTS_H
#define NOISEPROOF_PRODUCTS_H

#include "vectors.h"

#define TILE (LANES / 2)  /* rows of the result in a tile: with its columns, as many numbers as registers hold */
#define PANEL (3 * LANES) /* its columns */
#define DEPTH 256         /* rows that are summed up at a time */

#if LANES == 16
#define HALVES(all) (__builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15))
#else
#define HALVES(all) (all)
#endif

typedef float eight_floats __attribute__((vector_size(32)));
typedef float four_floats __attribute__((vector_size(16)));

/* The sum of a vector's numbers. */
HELPER float total(floats all) {
    const eight_floats eight = HALVES(all);
    const four_floats four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    const four_floats two = four + __builtin_shufflevector(four, four, 2, 3, 0, 1);
    return two[0] + two[1];
}

/* Adds to the rows of the result from `first` tile to before `last`, in the columns of one panel, if `more`; else begins them.
 * `packed` has the weighed matrix tile by tile: TILE numbers of every row, and zeros where there are fewer. */
HELPER void add_products(const float *packed, int64_t first, int64_t last, int64_t high, const float *rows, int64_t wide,
                         int64_t panel, int64_t depth, int more, float *out) {
    const int64_t column = panel * PANEL, here = wide - column < PANEL ? wide - column : PANEL;
    const float *from = rows + column;
    int64_t stride = wide;
    float edge[DEPTH * PANEL];
    if (here < PANEL) { /* beyond the last column there may be nothing to read */
        memset(edge, 0, (size_t)(depth * PANEL) * sizeof *edge);
        for (int64_t i = 0; i < depth; i++) memcpy(edge + i * PANEL, from + i * wide, (size_t)here * sizeof *edge);
        from = edge;
        stride = PANEL;
    }
    for (int64_t tile = first; tile < last; tile++) {
        const float *factors = packed + tile * depth * TILE;
        floats sums[TILE][3] = {{{0}}};
        for (int64_t i = 0; i < depth; i++) {
            const float *row = from + i * stride;
            const floats left = load(row), middle = load(row + LANES), right = load(row + 2 * LANES);
#pragma GCC unroll 8
            for (int k = 0; k < TILE; k++) {
                const floats factor = all_of(factors[i * TILE + k]);
                sums[k][0] += factor * left;
                sums[k][1] += factor * middle;
                sums[k][2] += factor * right;
            }
        }
        for (int k = 0; k < TILE && tile * TILE + k < high; k++) {
            float *to = out + (tile * TILE + k) * wide + column;
            float each[PANEL];
            for (int i = 0; i < 3; i++) store(each + i * LANES, sums[k][i]);
            if (more) {
                for (int64_t i = 0; i < here; i++) to[i] += each[i];
            } else {
                memcpy(to, each, (size_t)here * sizeof *to);
            }
        }
    }
}

/* Adds the products of four rows with four others, in one vector's columns, where `mask` has its bits set. */
HELPER void add_pairs(const float *const left[4], const float *const right[4], int64_t at, ints mask, floats sums[4][4]) {
    floats other[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) other[j] = (floats)((ints)load(right[j] + at) & mask);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const floats own = (floats)((ints)load(left[j] + at) & mask);
#pragma GCC unroll 4
        for (int l = 0; l < 4; l++) sums[j][l] += own * other[l];
    }
}

/* out[i][k] = the inner product of rows i and k, for `count` rows of LANES numbers or more, `stride` apart. */
HELPER void inner_products(const float *rows, int64_t count, int64_t stride, int64_t wide, float *out) {
    const ints all = ~(ints){0};
    int32_t lanes[LANES];
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane >= LANES - wide % LANES ? -1 : 0;
    ints last;
    memcpy(&last, lanes, sizeof last);
    for (int64_t i = 0; i < count; i += 4) {
        for (int64_t k = 0; k <= i; k += 4) {
            const float *left[4], *right[4];
            floats sums[4][4] = {{{0}}};
            for (int j = 0; j < 4; j++) { /* beyond the last row, that row again */
                left[j] = rows + (i + j < count ? i + j : count - 1) * stride;
                right[j] = rows + (k + j < count ? k + j : count - 1) * stride;
            }
            for (int64_t at = 0; at + LANES <= wide; at += LANES) add_pairs(left, right, at, all, sums);
            if (wide % LANES) add_pairs(left, right, wide - LANES, last, sums); /* some columns come again, and are masked */
            for (int j = 0; j < 4 && i + j < count; j++) {
                for (int l = 0; l < 4 && k + l < count; l++) {
                    out[(i + j) * count + k + l] = out[(k + l) * count + i + j] = total(sums[j][l]);
                }
            }
        }
    }
}

#endif
