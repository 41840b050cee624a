/* Clipping: the norms of records' gradients, and their errors scaled by them, without a gradient being written out. */
#include "kernels.h"
#include "vectors.h"

#include <float.h>

#define LARGE (1 << 16) /* numbers from which on several threads are faster than one */
#define STRIP 128       /* columns that are summed at a time */

#define PARTS 16        /* sums that are kept side by side, so that the compiler can make vectors of them */

/* In double precision: rounding must not let a record's gradient pass for shorter than it is. */
HELPER double inner(const float *row, const float *other, int64_t columns) {
    double parts[PARTS] = {0}, total = 0;
    int64_t i = 0;
    for (; i + PARTS <= columns; i += PARTS) {
        for (int part = 0; part < PARTS; part++) parts[part] += (double)row[i + part] * other[i + part];
    }
    for (; i < columns; i++) total += (double)row[i] * other[i];
    for (int part = 0; part < PARTS; part++) total += parts[part];
    return total;
}

/* The inner product of two records' gradients in one layer. */
HELPER double between(const Layer *layer, int64_t record, int64_t other) {
    const int64_t wide = layer->activation_columns, high = layer->error_columns;
    double factor = layer->sums ? 1 : 0;
    if (layer->activations) factor += inner(layer->activations + record * wide, layer->activations + other * wide, wide);
    return factor * inner(layer->errors + record * high, layer->errors + other * high, high);
}

/* Of records from `first` to before `last`, whose gradients are added up: a person's. Several may cancel, so that of their sum
 * is left what rounding makes of them in float32, and in the inner products here: both are added to the norm. */
CLONED static double squared_norm(const Layer *layers, int count, int64_t first, int64_t last, int64_t records) {
    double total = 0;
    for (const Layer *layer = layers; layer < layers + count; layer++) {
        double squared = 0, lengths = 0;
        for (int64_t record = first; record < last; record++) {
            const double own = between(layer, record, record);
            squared += own;
            lengths += sqrt(own);
            for (int64_t other = first; other < record; other++) squared += 2 * between(layer, record, other);
        }
        if (last - first > 1) {
            const double widths = sqrt((double)layer->error_columns) + sqrt((double)layer->activation_columns);
            const double doubt = DBL_EPSILON * (16 + 4 * widths) * lengths * lengths;
            const double length = sqrt((squared > 0 ? squared : 0) + doubt) + 2 * sqrt((double)records) * FLT_EPSILON * lengths;
            squared = length * length;
        }
        total += squared;
    }
    return total;
}

/* The sums of the weighed errors, which are the bias's, in some columns. */
CLONED static void sum_errors(const Layer *layer, int64_t records, const float *weights, int64_t first) {
    const int64_t columns = layer->error_columns, here = columns - first < STRIP ? columns - first : STRIP;
    float sums[STRIP] = {0};
    for (int64_t record = 0; record < records; record++) {
        const float *old = layer->errors + record * columns + first;
        for (int64_t i = 0; i < here; i++) sums[i] += weights[record] * old[i];
    }
    memcpy(layer->sums + first, sums, (size_t)here * sizeof *sums);
}

int clip_layers(const Layer *layers, int count, int64_t records, const int64_t *ends, int64_t persons, float clip, float share,
                 float *weights) {
    int64_t width = 0;
    int positive = 1;
    for (int i = 0; i < count; i++) width += layers[i].error_columns + layers[i].activation_columns;
#pragma omp parallel for schedule(static) reduction(&& : positive) if (records * width >= LARGE)
    for (int64_t person = 0; person < persons; person++) {
        const int64_t first = ends ? (person ? ends[person - 1] : 0) : person, last = ends ? ends[person] : person + 1;
        const double squared = squared_norm(layers, count, first, last, records);
        /* A hair below, so that rounding to float32 cannot push a record over (clip_weights does the same). */
        const double exact = (double)clip * share * (1 - 1e-5) / sqrt(squared);
        const float weight = exact > share ? share : (float)exact;
        for (int64_t record = first; record < last; record++) weights[record] = weight;
        positive = positive && squared <= FLT_MAX && weight > 0;
    }
    if (!positive) return 0;
    for (int i = 0; i < count; i++) {
        const int64_t columns = layers[i].error_columns;
        if (layers[i].activations) {
            if (!sum_products(layers + i, records, weights)) return 0; /* no memory */
            continue;
        }
#pragma omp parallel for schedule(static) if (columns > STRIP && records * columns >= LARGE)
        for (int64_t first = 0; first < columns; first += STRIP) sum_errors(layers + i, records, weights, first);
    }
    return 1;
}
