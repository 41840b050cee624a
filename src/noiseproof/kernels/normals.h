/* Normals, LANES of ChaCha20's blocks at a time: normals.c has this with short vectors, wide_normals.c with long ones.
 *
 * ChaCha20's bits (RFC 8439) become uniforms, and these normals by the inverse error function, in one pass.
 */
#ifndef NOISEPROOF_NORMALS_H
#define NOISEPROOF_NORMALS_H

#include "vectors.h"

#define BLOCK (1 << 17)    /* coordinates that share a nonce, as in randomness.py */
#define GROUP (16 * LANES) /* coordinates made at a time */

HELPER words rotate(words x, int by) { return (x << by) | (x >> (32 - by)); }

#define QUARTER(a, b, c, d)            \
    a += b, d = rotate(d ^ a, 16);     \
    c += d, b = rotate(b ^ c, 12);     \
    a += b, d = rotate(d ^ a, 8);      \
    c += d, b = rotate(b ^ c, 7)

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

/* LANES blocks of the key stream from block number `counter` on, in the stream's order. */
HELPER void key_stream(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, uint32_t *stream) {
    static const uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    static const uint32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const words zeros = {0};
    words start[16], x[16], lanes;
    memcpy(&lanes, numbers, sizeof lanes);
    for (int i = 0; i < 4; i++) start[i] = zeros + constants[i];
    for (int i = 0; i < 8; i++) start[4 + i] = zeros + key[i];
    start[12] = lanes + counter;
    for (int i = 0; i < 3; i++) start[13 + i] = zeros + nonce[i];
    memcpy(x, start, sizeof start);
    for (int round = 0; round < 10; round++) {
        QUARTER(x[0], x[4], x[8], x[12]);
        QUARTER(x[1], x[5], x[9], x[13]);
        QUARTER(x[2], x[6], x[10], x[14]);
        QUARTER(x[3], x[7], x[11], x[15]);
        QUARTER(x[0], x[5], x[10], x[15]);
        QUARTER(x[1], x[6], x[11], x[12]);
        QUARTER(x[2], x[7], x[8], x[13]);
        QUARTER(x[3], x[4], x[9], x[14]);
    }
    for (int i = 0; i < 16; i++) x[i] += start[i];
    uint32_t by_word[16 * LANES];
    memcpy(by_word, x, sizeof by_word);
    for (int word = 0; word < 16; word += 8) {
        for (int lane = 0; lane < LANES; lane += 8) transpose(by_word + LANES * word + lane, stream + 16 * lane + word);
    }
}

/* `kibibytes` times 1,024 bytes of the key stream, from its block number `counter` on. */
HELPER void key_stream_run(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, int kibibytes, uint32_t *stream) {
    for (int done = 0; done < 16 * kibibytes; done += LANES) key_stream(key, nonce, counter + (uint32_t)done, stream + 16 * done);
}

/* The inverse error function of numbers strictly between -1 and 1, in float32 (Giles 2010). */
HELPER floats inverse_error(floats x) {
    static const float near[9] = {2.81022636e-08f,  3.43273939e-07f, -3.5233877e-06f,  -4.39150654e-06f, 0.00021858087f,
                                  -0.00125372503f, -0.00417768164f, 0.246640727f,      1.50140941f};
    static const float far[9] = {-0.000200214257f, 0.000100950558f, 0.00134934322f, -0.00367342844f, 0.00573950773f,
                                 -0.0076224613f,   0.00943887047f,  1.00167406f,    2.83297682f};
    floats w = -logarithm((1.0f - x) * (1.0f + x));
    floats v = w - 2.5f, p = all_of(near[0]);
    for (int i = 1; i < 9; i++) p = p * v + near[i];
    ints tail = not_negative(w - 5.0f);
    if (any(tail)) { /* about one vector in forty */
        floats q = all_of(far[0]), u = root(w) - 3.0f;
        for (int i = 1; i < 9; i++) q = q * u + far[i];
        p = select_floats(tail, q, p);
    }
    return p * x;
}

/* Standard normals over sqrt(2) from random integers. As far from 0 as an integer goes becomes the last number before 1,
 * whose normal is finite. */
HELPER floats normal(ints whole) { return inverse_error(as_floats(whole) * (float)((1.0 - 0x1p-24) * 0x1p-31)); }

/* The coordinates from 16 * LANES * group on; 1 unless an old value is not finite. */
HELPER int add_group(const uint32_t key[8], uint64_t call, int64_t group, const float *old, float *new,
                            int64_t count, float scale) {
    const int64_t first = group * GROUP;
    const uint32_t nonce[3] = {(uint32_t)(first / BLOCK), (uint32_t)call, (uint32_t)(call >> 32)};
    const int here = count - first < GROUP ? (int)(count - first) : GROUP;
    uint32_t bits[GROUP];
    float noise[GROUP];
    key_stream(key, nonce, (uint32_t)(first % BLOCK / 16), bits);
    for (int i = 0; i < GROUP; i += LANES) {
        ints some;
        memcpy(&some, bits + i, sizeof some);
        store(noise + i, normal(some));
    }
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
