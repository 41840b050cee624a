/* Lattice: secure noise, integers all the way but for exact products with powers of two; see discrete_noise.py and
 * secure.py, whose lines give the same numbers to the last bit. */
#include <stdlib.h>

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

#define KIBIBYTES 8 /* of a stream made at a time: what a core's first cache takes besides the tables */
#define AHEAD (128 * KIBIBYTES)

/* The words of one key and nonce, in order. */
typedef struct {
    const uint32_t *key;
    uint32_t nonce[3], counter;
    int used;
    uint64_t ahead[AHEAD];
} Stream;

/* The next words, `most` of them or as many as are made already; `count` says how many. */
static const uint64_t *next_words(Stream *stream, int64_t most, int64_t *count) {
    if (stream->used == AHEAD) {
        fill_stream(stream->key, stream->nonce, stream->counter, KIBIBYTES, (uint32_t *)stream->ahead);
        stream->counter += 16 * KIBIBYTES;
        stream->used = 0;
    }
    const uint64_t *words = stream->ahead + stream->used;
    *count = most < AHEAD - stream->used ? most : AHEAD - stream->used;
    stream->used += (int)*count;
    return words;
}

static uint64_t next_word(Stream *stream) {
    int64_t one;
    return *next_words(stream, 1, &one);
}

/* Where the interval of a word's entry begins, and how wide it is: 0 for a tail. */
HELPER int64_t beginning(const Law *law, uint64_t word) { return (int64_t)law->table[2 * (word & law->mask)]; }
HELPER uint64_t width_of(const Law *law, uint64_t word) { return (uint32_t)law->table[2 * (word & law->mask) + 1]; }

/* A proposal for each word, and which of them their first bits leave open. */
CLONED static void propose_run(const Law *law, const uint64_t *restrict random, int64_t count, int64_t *restrict drawn,
                               uint8_t *restrict open) {
    const uint64_t *restrict table = law->table, mask = law->mask;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t word = random[i], left = table[2 * (word & mask)], rest = table[2 * (word & mask) + 1];
        const uint64_t product = (word >> (64 - FIRST_BITS)) * (rest & 0xffffffff);
        open[i] = (product >> 1 & 0xffffffff) >= rest >> 32;
        drawn[i] = (int64_t)(left + (product >> FIRST_BITS));
    }
}

/* A proposal that its first bits left open: 1 if it is accepted, 0 if not, -1 if float64 cannot tell. */
static int settle(const Law *law, uint64_t word, uint64_t fresh, int64_t excess, int64_t *drawn) {
    const uint64_t within = width_of(law, word), width = within ? within : 1;
    const uint64_t product = (word >> (64 - FIRST_BITS)) * width;
    const uint64_t sum = ((product & (((uint64_t)1 << FIRST_BITS) - 1)) << 30) + ((fresh * width) >> 2);
    const uint64_t fraction = sum & (((uint64_t)1 << 63) - 1);
    const int64_t left = beginning(law, word);
    if (within) {
        *drawn = left + (int64_t)(product >> FIRST_BITS) + (int64_t)(sum >> 63);
    } else {
        *drawn = word & law->below ? left - 1 - excess : left + excess;
    }
    const double z = fabs((double)*drawn) / law->scale, exponent = law->squared ? z * z / 2 : z;
    const double limit = within ? (double)width / law->constant * exp(-exponent)
                                : exp((double)excess / law->tail->scale - law->tail_log - exponent);
    const double low = (double)fraction * 0x1p-63, high = (double)(fraction + (width >> 2) + 2) * 0x1p-63;
    if (high < limit - law->doubt) return 1;
    return low < limit + law->doubt || high >= 1 - law->doubt ? -1 : 0;
}

/* discrete_noise.py's `sample` at one scale, word for word; 0 if some draw cannot be decided in float64, or for want of
 * memory. */
static int draw(Stream *stream, const Law *law, int64_t count, int64_t *drawn) {
    if (!count) return 1;
    /* Of the draws that are open: which they are, their words, the words after, how far into the tail they are. */
    int64_t *room = malloc((size_t)count * 4 * sizeof *room);
    if (!room) return 0;
    int64_t *places = room, *excess = room + count;
    uint64_t *words = (uint64_t *)room + 2 * count, *fresh = (uint64_t *)room + 3 * count;
    int fine = 1, first_round = 1;
    for (int64_t left = count; left && fine;) {
        int64_t found = 0, far = 0;
        for (int64_t first = 0, here; first < left; first += here) {
            int64_t proposals[AHEAD];
            uint8_t open[AHEAD + 8] = {0};
            const uint64_t *random = next_words(stream, left - first, &here);
            int64_t *made = first_round ? drawn + first : proposals;
            propose_run(law, random, here, made, open);
            if (!first_round) {
                for (int64_t i = 0; i < here; i++) drawn[places[first + i]] = made[i];
            }
            for (int64_t part = 0; part < here; part += 8) {
                uint64_t any_of_eight;
                memcpy(&any_of_eight, open + part, sizeof any_of_eight);
                if (!any_of_eight) continue; /* nine times in ten */
                for (int64_t i = part; i < part + 8 && i < here; i++) {
                    if (!open[i]) continue;
                    words[found] = random[i];
                    /* Never beyond first + i, so that no place is lost. */
                    places[found++] = first_round ? first + i : places[first + i];
                }
            }
        }
        for (int64_t i = 0; i < found; i++) {
            fresh[i] = next_word(stream) >> 32;
            far += !width_of(law, words[i]);
        }
        fine = draw(stream, law->tail, far, excess);
        left = far = 0;
        for (int64_t i = 0; i < found && fine; i++) {
            const int64_t place = places[i], beyond = width_of(law, words[i]) ? 0 : excess[far++];
            const int settled = settle(law, words[i], fresh[i], beyond, drawn + place);
            fine = settled >= 0;
            if (!settled) places[left++] = place;
        }
        first_round = 0;
    }
    free(room);
    return fine;
}

HELPER int finite_floats(const float *value, int64_t count) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t pattern;
        memcpy(&pattern, value + i, sizeof pattern);
        bad |= (pattern & 0x7f800000) == 0x7f800000;
    }
    return !bad;
}

HELPER int finite_doubles(const double *value, int64_t count) {
    uint64_t bad = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t pattern;
        memcpy(&pattern, value + i, sizeof pattern);
        bad |= (pattern & 0x7ff0000000000000) == 0x7ff0000000000000;
    }
    return !bad;
}

CLONED static int all_finite(const void *value, int wide, int64_t first, int64_t count) {
    return wide ? finite_doubles((const double *)value + first, count) : finite_floats((const float *)value + first, count);
}

int64_t add_law(const uint32_t key[8], const Law *law, const void *value, void *out, int wide, int64_t count,
                int64_t blocks, double step, int64_t *failed) {
    int64_t failures = 0;
    int finite = 1;
#pragma omp parallel for schedule(dynamic, 1) if (count > 8192)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = count * block / blocks, here = count * (block + 1) / blocks - first;
        Stream stream = {.key = key, .nonce = {(uint32_t)block, (uint32_t)(block >> 32), 0}, .used = AHEAD};
        int64_t *drawn = malloc((size_t)here * sizeof *drawn + 1);
        const int fine = drawn && all_finite(value, wide, first, here);
        if (drawn && !fine) {
#pragma omp atomic write
            finite = 0;
        } else if (!drawn || !draw(&stream, law, here, drawn)) {
            int64_t place;
#pragma omp atomic capture
            place = failures++;
            failed[place] = block;
        } else if (wide) {
            add_doubles_on_lattice((const double *)value + first, drawn, here, &step, 0, (double *)out + first);
        } else {
            add_floats_on_lattice((const float *)value + first, drawn, here, &step, 0, (float *)out + first);
        }
        free(drawn);
    }
    return finite ? failures : -1;
}
