/* Rows: gradients of a table of which every record looked up a few rows, and sums over the places of every channel. */
#include "kernels.h"
#include "vectors.h"

#include <stdlib.h>

HELPER uint64_t scrambled(int64_t row) { return (uint64_t)row * 0x9e3779b97f4a7c15 >> 32; }

CLONED static void add_row(float *to, const float *from, int64_t width, float weight) {
    for (int64_t i = 0; i < width; i++) to[i] += weight * from[i];
}

int64_t merge_rows(const float *values, const int64_t *owners, const int64_t *rows, int64_t count, int64_t width, float *merged,
                   int64_t *new_owners, int64_t *new_rows) {
    int64_t found = 0, first = 0, most = 0, room = 1;
    for (int64_t i = 1; i < count; i++) {
        if (owners[i] < owners[i - 1]) return -1;
    }
    for (int64_t i = 0, here = 0; i < count; i++) {
        here = i && owners[i] == owners[i - 1] ? here + 1 : 1;
        most = here > most ? here : most;
    }
    while (room < 2 * most) room *= 2;
    int64_t *slots = malloc((size_t)room * sizeof *slots);
    if (!slots) return -1;
    memset(slots, -1, (size_t)room * sizeof *slots);
    for (int64_t i = 0; i < count; i++) {
        if (i && owners[i] != owners[i - 1]) first = found; /* what a slot has of earlier owners counts as nothing */
        int64_t slot = (int64_t)scrambled(rows[i]) & (room - 1);
        while (slots[slot] >= first && new_rows[slots[slot]] != rows[i]) slot = (slot + 1) & (room - 1);
        const float *value = values + i * width;
        if (slots[slot] >= first) {
            add_row(merged + slots[slot] * width, value, width, 1);
            continue;
        }
        memcpy(merged + found * width, value, (size_t)width * sizeof *merged);
        new_owners[found] = owners[i];
        new_rows[found] = rows[i];
        slots[slot] = found++;
    }
    free(slots);
    return found;
}

CLONED static double squared(const float *row, int64_t width) {
    double parts[8] = {0}, total = 0;
    int64_t i = 0;
    for (; i + 8 <= width; i += 8) {
        for (int part = 0; part < 8; part++) parts[part] += (double)row[i + part] * row[i + part];
    }
    for (; i < width; i++) total += (double)row[i] * row[i];
    for (int part = 0; part < 8; part++) total += parts[part];
    return total;
}

void add_squares(const float *values, const int64_t *owners, int64_t count, int64_t width, double *out) {
    for (int64_t i = 0; i < count; i++) out[owners[i]] += squared(values + i * width, width);
}

void add_rows(const float *values, const int64_t *places, const int64_t *rows, int64_t count, int64_t width, const float *weights,
              float *out) {
    for (int64_t i = 0; i < count; i++) add_row(out + rows[i] * width, values + (places ? places[i] : i) * width, width, weights[i]);
}

#define PARTS 16 /* sums that are kept side by side, so that the compiler can make vectors of them */
#define LARGE (1 << 16)

CLONED static void sum_channel(const float *errors, const float *inputs, int64_t places, double *sum, double *product) {
    double sums[PARTS] = {0}, products[PARTS] = {0};
    int64_t i = 0;
    for (; i + PARTS <= places; i += PARTS) {
        for (int part = 0; part < PARTS; part++) {
            sums[part] += errors[i + part];
            products[part] += (double)errors[i + part] * inputs[i + part];
        }
    }
    for (; i < places; i++) {
        sums[0] += errors[i];
        products[0] += (double)errors[i] * inputs[i];
    }
    *sum = *product = 0;
    for (int part = 0; part < PARTS; part++) *sum += sums[part], *product += products[part];
}

void sum_channels(const float *errors, const float *inputs, int64_t count, int64_t places, double *sums, double *products) {
#pragma omp parallel for schedule(static) if (count * places >= LARGE)
    for (int64_t i = 0; i < count; i++) sum_channel(errors + i * places, inputs + i * places, places, sums + i, products + i);
}
