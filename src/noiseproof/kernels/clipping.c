/* Clipping: the norms of records' gradients, and their errors scaled by them, without a gradient being written out. */
#include "kernels.h"
#include "vectors.h"

#include <float.h>

#define LARGE (1 << 16) /* numbers from which on several threads are faster than one */
#define STRIP 128       /* columns that are summed at a time */

#define PARTS 16        /* sums that are kept side by side, so that the compiler can make vectors of them */

/* In double precision: rounding must not let a record's gradient pass for shorter than it is. */
HELPER double squared_length(const float *row, int64_t columns) {
    double parts[PARTS] = {0}, total = 0;
    int64_t i = 0;
    for (; i + PARTS <= columns; i += PARTS) {
        for (int part = 0; part < PARTS; part++) parts[part] += (double)row[i + part] * row[i + part];
    }
    for (; i < columns; i++) total += (double)row[i] * row[i];
    for (int part = 0; part < PARTS; part++) total += parts[part];
    return total;
}

CLONED static double squared_norm(const Layer *layers, int count, int64_t record) {
    double total = 0;
    for (const Layer *layer = layers; layer < layers + count; layer++) {
        double factor = layer->sums ? 1 : 0;
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
        const double squared = squared_norm(layers, count, record);
        /* A hair below, so that rounding to float32 cannot push a record over (clip_weights does the same). */
        const double weight = (double)clip * share * (1 - 1e-5) / sqrt(squared);
        weights[record] = weight > share ? share : (float)weight;
        positive = positive && squared <= FLT_MAX && weights[record] > 0;
    }
    if (!positive) return 0;
    for (int i = 0; i < count; i++) {
        const int64_t columns = layers[i].error_columns;
#pragma omp parallel for schedule(static) if (columns > STRIP && records * columns >= LARGE)
        for (int64_t first = 0; first < columns; first += STRIP) weigh(layers + i, records, weights, first);
    }
    return 1;
}
