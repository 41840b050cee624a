/* Normals: ChaCha20's bits (RFC 8439) become uniforms, and these normals by the inverse error function, in one pass. */
#include "kernels.h"
#include "vectors.h"

#define BLOCK (1 << 17) /* coordinates that share a nonce, as in blocks.py */
#define GROUP (16 * LANES) /* coordinates made at a time: sixteen of ChaCha20's blocks */

HELPER words rotate(words x, int by) { return (x << by) | (x >> (32 - by)); }

#define QUARTER(a, b, c, d)            \
    a += b, d = rotate(d ^ a, 16);     \
    c += d, b = rotate(b ^ c, 12);     \
    a += b, d = rotate(d ^ a, 8);      \
    c += d, b = rotate(b ^ c, 7)

#define LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* Rows become columns: one number of either half after the other, four times. */
HELPER void transpose(words x[16]) {
    for (int round = 0; round < 4; round++) {
        words y[16];
        for (int i = 0; i < 8; i++) {
            y[2 * i] = LOW(x[i], x[i + 8]);
            y[2 * i + 1] = HIGH(x[i], x[i + 8]);
        }
        memcpy(x, y, sizeof y);
    }
}

/* Sixteen blocks of the key stream from block number `counter` on, in the stream's order. */
HELPER void key_stream(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, words x[16]) {
    static const uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    const words zeros = {0}, lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    words start[16];
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
    transpose(x);
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
    ints tail = w >= 5.0f;
    if (any(tail)) { /* about one vector in twenty */
        floats q = all_of(far[0]), u = root(w) - 3.0f;
        for (int i = 1; i < 9; i++) q = q * u + far[i];
        p = select_floats(tail, q, p);
    }
    return p * x;
}

/* Standard normals over sqrt(2) from random integers. As far from 0 as an integer goes becomes the last number before 1,
 * whose normal is finite. */
HELPER floats normal(ints whole) { return inverse_error(as_floats(whole) * (float)((1.0 - 0x1p-24) * 0x1p-31)); }

CLONED void make_normals(const int32_t *whole, int64_t count, float *normals) {
    for (int64_t first = 0; first < count; first += LANES) {
        const size_t here = (size_t)(count - first < LANES ? count - first : LANES);
        ints some = {0};
        memcpy(&some, whole + first, here * sizeof *whole);
        const floats made = normal(some);
        memcpy(normals + first, &made, here * sizeof *normals);
    }
}

/* The coordinates from 256 * group on; 1 unless an old value is not finite. */
CLONED static int add_group(const uint32_t key[8], uint64_t call, int64_t group, const float *old, float *new,
                            int64_t count, float scale) {
    const int64_t first = group * GROUP;
    const uint32_t nonce[3] = {(uint32_t)(first / BLOCK), (uint32_t)call, (uint32_t)(call >> 32)};
    const int here = count - first < GROUP ? (int)(count - first) : GROUP;
    words bits[16];
    float noise[GROUP];
    key_stream(key, nonce, (uint32_t)(first % BLOCK / 16), bits);
    for (int i = 0; i < 16; i++) store(noise + LANES * i, normal((ints)bits[i]));
    int32_t bad = 0;
    for (int i = 0; i < here; i++) {
        int32_t pattern;
        memcpy(&pattern, old + first + i, sizeof pattern);
        bad |= (pattern & 0x7f800000) == 0x7f800000;
        new[first + i] = old[first + i] + scale * noise[i];
    }
    return !bad;
}

int add_normals(const uint32_t key[8], uint64_t call, const float *old, float *new, int64_t count, float scale) {
    const int64_t groups = (count + GROUP - 1) / GROUP;
    const float factor = (float)(1.4142135623730951 * scale);
    int finite = 1;
#pragma omp parallel for schedule(static) reduction(&& : finite) if (groups > 32)
    for (int64_t group = 0; group < groups; group++) {
        const int here = add_group(key, call, group, old, new, count, factor);
        finite = finite && here;
    }
    return finite;
}
