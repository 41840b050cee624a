/* LSTM: all steps forwards, and all backwards. Records do not meet, so that every thread takes some of them through all steps. */
#include "kernels.h"
#include "vectors.h"

#include <omp.h>
#include <stdlib.h>

#define LARGE (1 << 10) /* hidden numbers from which on several threads are faster than one */
#define BLOCK 64        /* records that a thread takes at most: what it reads of them should stay in its cache */

/* `here` numbers, LANES at most; zeros fill up a vector. */
HELPER floats load_some(const float *from, int64_t here) {
    if (here == LANES) return load(from);
    floats some = {0};
    memcpy(&some, from, (size_t)here * sizeof *from);
    return some;
}

HELPER void store_some(float *to, floats some, int64_t here) {
    if (here == LANES) {
        store(to, some);
    } else {
        memcpy(to, &some, (size_t)here * sizeof *to);
    }
}

HELPER floats absolute(floats x) { return (floats)((ints)x & 0x7fffffff); }
HELPER floats with_sign_of(floats x, floats sign) { return (floats)((ints)x | ((ints)sign & INT32_MIN)); }

HELPER floats sigmoid(floats x) {
    const floats e = exponential(-absolute(x));
    return select_floats(not_negative(x), all_of(1.0f), e) / (1.0f + e);
}

/* Near 0 by a polynomial (Cephes'), where 1 - e^(-2x) would lose digits. */
HELPER floats tangent(floats x) {
    const floats size = absolute(x), e = exponential(-2.0f * size), z = x * x;
    floats p = all_of(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    return select_floats(not_negative(size - 0.625f), with_sign_of((1.0f - e) / (1.0f + e), x), x + x * z * p);
}

HELPER void forward_some(float *gates, const float *share, const float *before, float *cell, float *squashed, float *hidden,
                         int64_t width, int64_t here) {
    floats gate[4];
    for (int k = 0; k < 4; k++) {
        gate[k] = load_some(gates + k * width, here) + load_some(share + k * width, here);
        gate[k] = k == 2 ? tangent(gate[k]) : sigmoid(gate[k]);
        store_some(gates + k * width, gate[k], here);
    }
    const floats c = gate[1] * load_some(before, here) + gate[0] * gate[2], t = tangent(c);
    store_some(cell, c, here);
    store_some(squashed, t, here);
    store_some(hidden, gate[3] * t, here);
}

CLONED static void forward_row(float *gates, const float *share, const float *before, float *cell, float *squashed,
                               float *hidden, int64_t width) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        forward_some(gates + i, share + i, before + i, cell + i, squashed + i, hidden + i, width, LANES);
    }
    if (i < width) forward_some(gates + i, share + i, before + i, cell + i, squashed + i, hidden + i, width, width - i);
}

HELPER void backward_some(const float *gates, const float *before, const float *squashed, const float *hidden_error,
                          float *cell_error, float *errors, int64_t width, int64_t here) {
    const floats keep = load_some(gates, here), forget = load_some(gates + width, here);
    const floats new = load_some(gates + 2 * width, here), out = load_some(gates + 3 * width, here);
    const floats c = load_some(before, here), t = load_some(squashed, here), dh = load_some(hidden_error, here);
    const floats dc = load_some(cell_error, here) + dh * out * (1.0f - t * t);
    store_some(errors, dc * new * keep * (1.0f - keep), here);
    store_some(errors + width, dc * c * forget * (1.0f - forget), here);
    store_some(errors + 2 * width, dc * keep * (1.0f - new * new), here);
    store_some(errors + 3 * width, dh * t * out * (1.0f - out), here);
    store_some(cell_error, dc * forget, here);
}

CLONED static void backward_row(const float *gates, const float *before, const float *squashed, const float *hidden_error,
                                float *cell_error, float *errors, int64_t width) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        backward_some(gates + i, before + i, squashed + i, hidden_error + i, cell_error + i, errors + i, width, LANES);
    }
    if (i < width) {
        backward_some(gates + i, before + i, squashed + i, hidden_error + i, cell_error + i, errors + i, width, width - i);
    }
}

/* Records of a thread's block, in tiles of eight. */
static int64_t block_of(int64_t records, int threads) {
    const int64_t each = ((records + threads - 1) / threads + 7) / 8 * 8;
    return each < BLOCK ? each : BLOCK;
}

int lstm_forward(float *gates, const float *across, int64_t padded, float *hidden, float *cell, float *squashed,
                 int64_t steps, int64_t records, int64_t width) {
    const int threads = records * width >= LARGE ? omp_get_max_threads() : 1;
    const int64_t block = block_of(records, threads), next = records * width;
    const int64_t packed = room_to_multiply(block), room = packed + block * padded;
    float *scratch = malloc((size_t)(room * threads) * sizeof *scratch);
    if (!scratch) return 0;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t first = 0; first < records; first += block) {
        float *own = scratch + omp_get_thread_num() * room, *share = own + packed;
        const int64_t here = records - first < block ? records - first : block;
        for (int64_t step = 0; step < steps; step++) {
            const int64_t start = step * next + first * width;
            multiply_block(hidden + start, here, width, across, padded, own, share);
            for (int64_t record = 0; record < here; record++) {
                const int64_t at = start + record * width;
                forward_row(gates + 4 * at, share + record * padded, cell + at, cell + at + next, squashed + at,
                            hidden + at + next, width);
            }
        }
    }
    free(scratch);
    return 1;
}

int lstm_backward(const float *gates, const float *cell, const float *squashed, const float *weight, int64_t padded,
                  const float *errors, int64_t by_step, int64_t by_record, float *hidden_error, float *cell_error,
                  float *at_gates, int64_t steps, int64_t records, int64_t width) {
    const int threads = records * width >= LARGE ? omp_get_max_threads() : 1;
    const int64_t block = block_of(records, threads), next = records * width;
    const int64_t packed = room_to_multiply(block), room = packed + block * padded;
    float *scratch = malloc((size_t)(room * threads) * sizeof *scratch);
    if (!scratch) return 0;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t first = 0; first < records; first += block) {
        float *own = scratch + omp_get_thread_num() * room, *share = own + packed;
        const int64_t here = records - first < block ? records - first : block;
        for (int64_t step = steps - 1; step >= 0; step--) {
            const int64_t start = step * next + first * width;
            for (int64_t record = 0; record < here; record++) {
                const int64_t at = start + record * width, of = (first + record) * width;
                backward_row(gates + 4 * at, cell + at, squashed + at, hidden_error + of, cell_error + of, at_gates + 4 * at,
                             width);
            }
            multiply_block(at_gates + 4 * start, here, 4 * width, weight, padded, own, share);
            for (int64_t record = 0; record < here; record++) {
                float *to = hidden_error + (first + record) * width;
                const float *from = share + record * padded;
                for (int64_t i = 0; i < width; i++) to[i] = from[i];
                if (!step) continue;
                const float *more = errors + (step - 1) * by_step + (first + record) * by_record;
                for (int64_t i = 0; i < width; i++) to[i] += more[i];
            }
        }
    }
    free(scratch);
    return 1;
}
