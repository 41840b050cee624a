/* Lattice: secure noise, integers all the way but for exact products with powers of two; see discrete_noise.py and
 * secure.py, whose lines give the same numbers to the last bit. */
#include "kernels.h"
#include "vectors.h"

#define FIRST_BITS 33
#define RUN 64 /* draws between two looks for undecided ones */

/* A proposal from the interval [left, left + width), and whether its first bits leave it open. */
HELPER int64_t proposed(uint64_t word, int64_t left, uint64_t width, uint64_t accept_below, uint8_t *open) {
    const uint64_t product = (word >> (64 - FIRST_BITS)) * width;
    *open = (product & (((uint64_t)1 << FIRST_BITS) - 1)) >= accept_below;
    return left + (int64_t)(product >> FIRST_BITS);
}

/* Note the places of open proposals, of which there are few. */
HELPER int64_t noted(const uint8_t open[RUN], int64_t first, int64_t *undecided, int64_t found) {
    for (int part = 0; part < RUN; part += 8) {
        uint64_t any_of_eight;
        memcpy(&any_of_eight, open + part, sizeof any_of_eight);
        if (!any_of_eight) continue; /* nine times in ten */
        for (int i = part; i < part + 8; i++) {
            if (open[i]) undecided[found++] = first + i;
        }
    }
    return found;
}

CLONED int64_t propose(const uint64_t *restrict random, int64_t count, const int64_t *restrict left,
                       const uint64_t *restrict width, const uint64_t *restrict accept_below, uint64_t mask,
                       int64_t *restrict drawn, int64_t *restrict undecided) {
    int64_t found = 0;
    for (int64_t first = 0; first < count; first += RUN) {
        const int64_t here = count - first < RUN ? count - first : RUN;
        uint8_t open[RUN] = {0};
        for (int64_t i = 0; i < here; i++) {
            const uint64_t word = random[first + i], entry = word & mask;
            drawn[first + i] = proposed(word, left[entry], width[entry], accept_below[entry], open + i);
        }
        found = noted(open, first, undecided, found);
    }
    return found;
}

CLONED int64_t propose_each(const uint64_t *restrict random, int64_t count, const double *restrict scale,
                            const double *restrict left, const double *restrict right, const uint64_t *restrict accept_below,
                            uint64_t mask, int64_t *restrict drawn, int64_t *restrict undecided) {
    int64_t found = 0;
    for (int64_t first = 0; first < count; first += RUN) {
        const int64_t here = count - first < RUN ? count - first : RUN;
        uint8_t open[RUN] = {0};
        for (int64_t i = 0; i < here; i++) {
            const uint64_t word = random[first + i], entry = word & mask;
            const double here_scale = scale[first + i];
            const int64_t begin = (int64_t)(left[entry] * here_scale), end = (int64_t)(right[entry] * here_scale);
            drawn[first + i] = proposed(word, begin, (uint64_t)(end - begin), accept_below[entry], open + i);
        }
        found = noted(open, first, undecided, found);
    }
    return found;
}

/* One coordinate: n is the value over the step, rounded to even, and no further than 2^61 from 0. */
HELPER double on_lattice(double value, double inverse, int64_t noise, double step) {
    double scaled = value * inverse;
    scaled = scaled > 0x1p61 ? 0x1p61 : scaled;
    scaled = scaled < -0x1p61 ? -0x1p61 : scaled;
    /* As rint does, which would not become vectors: beyond 2^52 there is nothing to round, and adding it rounds. */
    const double size = fabs(scaled), whole = size < 0x1p52 ? (size + 0x1p52) - 0x1p52 : size;
    return (double)((int64_t)copysign(whole, scaled) + noise) * step;
}

CLONED void add_floats_on_lattice(const float *value, const int64_t *noise, int64_t count, const double *steps, int each,
                                  float *out) {
    if (each) {
        for (int64_t i = 0; i < count; i++) out[i] = (float)on_lattice(value[i], 1 / steps[i], noise[i], steps[i]);
    } else {
        const double step = *steps, inverse = 1 / step;
        for (int64_t i = 0; i < count; i++) out[i] = (float)on_lattice(value[i], inverse, noise[i], step);
    }
}

CLONED void add_doubles_on_lattice(const double *value, const int64_t *noise, int64_t count, const double *steps, int each,
                                   double *out) {
    if (each) {
        for (int64_t i = 0; i < count; i++) out[i] = on_lattice(value[i], 1 / steps[i], noise[i], steps[i]);
    } else {
        const double step = *steps, inverse = 1 / step;
        for (int64_t i = 0; i < count; i++) out[i] = on_lattice(value[i], inverse, noise[i], step);
    }
}
