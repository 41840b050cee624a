/* Vectors: LANES numbers at a time (eight, if not said otherwise), and the functions of them that the kernels need.
 *
 * Written with the compiler's own vectors, so that the same text becomes AVX-512, AVX2, SSE or NEON; CLONED functions are
 * compiled for several processors, and the right one is taken when the library is loaded.
 */
#ifndef NOISEPROOF_VECTORS_H
#define NOISEPROOF_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && !defined(ONE_PROCESSOR) /* which tests define, to have each by itself */
#define SEVERAL_PROCESSORS
#define CLONED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONED
#endif
/* Helpers must become part of the clone that calls them, or they would be compiled for the oldest processor. */
#define HELPER static inline __attribute__((always_inline))

#ifndef LANES
#define LANES 8
#endif

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

HELPER floats load(const float *from) {
    floats all;
    memcpy(&all, from, sizeof all);
    return all;
}

HELPER void store(float *to, floats all) { memcpy(to, &all, sizeof all); }

HELPER floats all_of(float one) { return one + (floats){0}; }

HELPER floats as_floats(ints all) { return __builtin_convertvector(all, floats); }

HELPER ints as_ints(floats all) { return __builtin_convertvector(all, ints); }

/* `mask` has all bits set where `yes` is wanted, and none elsewhere. */
HELPER floats select_floats(ints mask, floats yes, floats no) {
    return (floats)((mask & (ints)yes) | (~mask & (ints)no));
}

/* A mask of where numbers (which are such) are at least 0: by the sign, since comparing more numbers than the processor's
 * vectors have falls apart. */
HELPER ints not_negative(floats x) { return ~((ints)x >> 31); }

/* Whether any bit of a mask is set. */
HELPER int any(ints mask) {
    typedef uint64_t half __attribute__((vector_size(2 * LANES)));
    half halves[2];
    memcpy(halves, &mask, sizeof halves);
    const half both = halves[0] | halves[1];
    uint64_t pairs[LANES / 4], all = 0;
    memcpy(pairs, &both, sizeof pairs);
    for (int i = 0; i < LANES / 4; i++) all |= pairs[i];
    return all != 0;
}

HELPER floats larger(floats one, floats other) { return select_floats(one > other, one, other); }

HELPER floats root(floats all) {
    float each[LANES];
    store(each, all);
    for (int lane = 0; lane < LANES; lane++) each[lane] = sqrtf(each[lane]); /* which becomes one instruction */
    return load(each);
}

/* e^x for x at most 0 (below -87 it gives the smallest normal number or so), to about one unit in the last place. */
HELPER floats exponential(floats x) {
    x = select_floats(x < -87.0f, all_of(-87.0f), x); /* which keeps what is not a number */
    ints n = as_ints(x * 1.44269504088896341f - 0.5f); /* towards 0, so to the nearest for x below 0 */
    floats whole = as_floats(n);
    floats r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    floats p = all_of(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return (p * r * r + r + 1.0f) * (floats)((n + 127) << 23);
}

#endif
