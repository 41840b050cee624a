/* Normals, several times LANES of ChaCha20's blocks at a time: normals.c has this with short vectors, wide_normals.c with long ones.
 *
 * ChaCha20's bits (RFC 8439) become uniforms, and these normals by the inverse error function, in one pass. Both are long chains
 * of operations that wait for each other, so that several are taken through side by side, operation by operation.
 */
#ifndef NOISEPROOF_NORMALS_H
#define NOISEPROOF_NORMALS_H

#include "vectors.h"

#define BLOCK (1 << 17)             /* coordinates that share a nonce, as in randomness.py */
#define STATES (LANES / 8)          /* of ChaCha20 side by side: as many as registers hold */
#define GROUP (16 * LANES * STATES) /* coordinates made at a time */
#define VECTORS (LANES / 2)         /* of normals side by side */

HELPER words rotate(words x, int by) { return (x << by) | (x >> (32 - by)); }

HELPER void quarter(words x[STATES][16], int a, int b, int c, int d) {
#pragma GCC unroll 2
    for (int s = 0; s < STATES; s++) {
        x[s][a] += x[s][b], x[s][d] = rotate(x[s][d] ^ x[s][a], 16);
        x[s][c] += x[s][d], x[s][b] = rotate(x[s][b] ^ x[s][c], 12);
        x[s][a] += x[s][b], x[s][d] = rotate(x[s][d] ^ x[s][a], 8);
        x[s][c] += x[s][d], x[s][b] = rotate(x[s][b] ^ x[s][c], 7);
    }
}

/* Vectors of eight, which more processors can shuffle than longer ones. */
typedef uint32_t eight __attribute__((vector_size(32)));

#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define EVEN(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define ODD(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define FRONT(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define BACK(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)

/* Eight rows of eight numbers, LANES apart, become columns, sixteen apart. */
HELPER void transpose(const uint32_t *from, uint32_t *to) {
    eight x[8], y[8];
    for (int i = 0; i < 8; i++) memcpy(x + i, from + LANES * i, sizeof *x);
    for (int i = 0; i < 8; i += 2) {
        y[i] = LOW(x[i], x[i + 1]);
        y[i + 1] = HIGH(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        x[i] = EVEN(y[i], y[i + 2]);
        x[i + 1] = ODD(y[i], y[i + 2]);
        x[i + 2] = EVEN(y[i + 1], y[i + 3]);
        x[i + 3] = ODD(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        const eight front = FRONT(x[i], x[i + 4]), back = BACK(x[i], x[i + 4]);
        memcpy(to + 16 * i, &front, sizeof front);
        memcpy(to + 16 * (i + 4), &back, sizeof back);
    }
}

/* STATES times LANES blocks of the key stream from block number `counter` on, in the stream's order. */
HELPER void key_stream(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, uint32_t *stream) {
    uint32_t start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    static const uint32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const words zeros = {0};
    words x[STATES][16], first[STATES], lanes;
    memcpy(&lanes, numbers, sizeof lanes);
    memcpy(start + 4, key, 8 * sizeof *key);
    memcpy(start + 13, nonce, 3 * sizeof *nonce);
#pragma GCC unroll 2
    for (int s = 0; s < STATES; s++) {
        first[s] = lanes + (counter + (uint32_t)(LANES * s));
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) x[s][i] = i == 12 ? first[s] : zeros + start[i];
    }
    for (int round = 0; round < 10; round++) {
        quarter(x, 0, 4, 8, 12);
        quarter(x, 1, 5, 9, 13);
        quarter(x, 2, 6, 10, 14);
        quarter(x, 3, 7, 11, 15);
        quarter(x, 0, 5, 10, 15);
        quarter(x, 1, 6, 11, 12);
        quarter(x, 2, 7, 8, 13);
        quarter(x, 3, 4, 9, 14);
    }
#pragma GCC unroll 2
    for (int s = 0; s < STATES; s++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) x[s][i] += i == 12 ? first[s] : zeros + start[i];
        uint32_t by_word[16 * LANES], *to = stream + 16 * LANES * s;
        memcpy(by_word, x[s], sizeof by_word);
        for (int word = 0; word < 16; word += 8) {
            for (int lane = 0; lane < LANES; lane += 8) transpose(by_word + LANES * word + lane, to + 16 * lane + word);
        }
    }
}

/* `kibibytes` times 1,024 bytes of the key stream, from its block number `counter` on. */
HELPER void key_stream_run(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, int kibibytes, uint32_t *stream) {
    for (int done = 0; done < 16 * kibibytes; done += LANES * STATES) key_stream(key, nonce, counter + (uint32_t)done, stream + 16 * done);
}

#define EACH _Pragma("GCC unroll 8") for (int k = 0; k < VECTORS; k++)

/* The natural logarithms of positive normal numbers, to about one unit in the last place (the polynomial is Cephes'). */
HELPER void logarithms(const floats x[VECTORS], floats logs[VECTORS]) {
    static const float factors[9] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
                                     -1.6668057665e-1f, 2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
    floats m[VECTORS], p[VECTORS];
    ints exponent[VECTORS];
    EACH exponent[k] = ((ints)x[k] - 0x3f3504f3) >> 23; /* so that the mantissa lies between sqrt(1/2) and sqrt(2) */
    EACH m[k] = (floats)((ints)x[k] - (exponent[k] << 23)) - 1.0f;
    EACH p[k] = all_of(factors[0]);
#pragma GCC unroll 9
    for (int i = 1; i < 9; i++) EACH p[k] = p[k] * m[k] + factors[i];
    EACH {
        const floats e = as_floats(exponent[k]), square = m[k] * m[k];
        logs[k] = m[k] + (square * (p[k] * m[k] - 0.5f) + e * -2.12194440e-4f) + e * 0.693359375f;
    }
}

/* Standard normals over sqrt(2) from random integers: the inverse error function (Giles 2010) of numbers strictly between -1 and 1.
 * As far from 0 as an integer goes becomes the last number before 1, whose normal is finite. */
HELPER void normals_of(const void *random, float *normals) {
    static const float near[9] = {2.81022636e-08f,  3.43273939e-07f, -3.5233877e-06f,  -4.39150654e-06f, 0.00021858087f,
                                  -0.00125372503f, -0.00417768164f, 0.246640727f,      1.50140941f};
    static const float far[9] = {-0.000200214257f, 0.000100950558f, 0.00134934322f, -0.00367342844f, 0.00573950773f,
                                 -0.0076224613f,   0.00943887047f,  1.00167406f,    2.83297682f};
    ints whole[VECTORS], tails = {0};
    floats x[VECTORS], w[VECTORS], p[VECTORS], v[VECTORS];
    memcpy(whole, random, sizeof whole);
    EACH x[k] = as_floats(whole[k]) * (float)((1.0 - 0x1p-24) * 0x1p-31);
    EACH w[k] = (1.0f - x[k]) * (1.0f + x[k]);
    logarithms(w, w);
    EACH w[k] = -w[k];
    EACH v[k] = w[k] - 2.5f;
    EACH p[k] = all_of(near[0]);
#pragma GCC unroll 9
    for (int i = 1; i < 9; i++) EACH p[k] = p[k] * v[k] + near[i];
    EACH tails |= not_negative(w[k] - 5.0f);
    EACH store(normals + LANES * k, p[k] * x[k]);
    if (!any(tails)) return;
    EACH {
        const ints tail = not_negative(w[k] - 5.0f);
        if (!any(tail)) continue; /* about nineteen in twenty */
        floats q = all_of(far[0]);
        const floats u = root(w[k]) - 3.0f;
        for (int i = 1; i < 9; i++) q = q * u + far[i];
        store(normals + LANES * k, select_floats(tail, q, p[k]) * x[k]);
    }
}

/* The coordinates from GROUP * group on; 1 unless an old value is not finite. */
HELPER int add_group(const uint32_t key[8], uint64_t call, int64_t group, const float *old, float *new,
                            int64_t count, float scale) {
    const int64_t first = group * GROUP;
    const uint32_t nonce[3] = {(uint32_t)(first / BLOCK), (uint32_t)call, (uint32_t)(call >> 32)};
    const int here = count - first < GROUP ? (int)(count - first) : GROUP;
    uint32_t bits[GROUP];
    float noise[GROUP];
    key_stream(key, nonce, (uint32_t)(first % BLOCK / 16), bits);
    for (int i = 0; i < GROUP; i += LANES * VECTORS) normals_of(bits + i, noise + i);
    int32_t bad = 0;
    for (int i = 0; i < here; i++) {
        int32_t pattern;
        memcpy(&pattern, old + first + i, sizeof pattern);
        bad |= (pattern & 0x7f800000) == 0x7f800000;
        new[first + i] = old[first + i] + scale * noise[i];
    }
    return !bad;
}

#endif
