/* Normals: seeded noise; see normals.h for how. */
#include "normals.h"
#include "kernels.h"

/* wide_normals.c */
int has_wide_normals(void);
int add_wide_group(const uint32_t key[8], uint64_t call, int64_t group, const float *old, float *new, int64_t count,
                   float scale);
void wide_key_stream(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, int kibibytes, uint32_t *stream);

CLONED static void short_key_stream(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, int kibibytes,
                                    uint32_t *stream) {
    key_stream_run(key, nonce, counter, kibibytes, stream);
}

void fill_stream(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, int kibibytes, uint32_t *stream) {
    (has_wide_normals() ? wide_key_stream : short_key_stream)(key, nonce, counter, kibibytes, stream);
}

CLONED void make_normals(const int32_t *whole, int64_t count, float *normals) {
    for (int64_t first = 0; first < count; first += LANES * VECTORS) {
        const size_t here = (size_t)(count - first < LANES * VECTORS ? count - first : LANES * VECTORS);
        int32_t some[LANES * VECTORS] = {0};
        float made[LANES * VECTORS];
        memcpy(some, whole + first, here * sizeof *whole);
        normals_of(some, made);
        memcpy(normals + first, made, here * sizeof *normals);
    }
}

CLONED static int add_short_group(const uint32_t key[8], uint64_t call, int64_t group, const float *old, float *new,
                                  int64_t count, float scale) {
    return add_group(key, call, group, old, new, count, scale);
}

int add_normals(const uint32_t key[8], uint64_t call, const float *old, float *new, int64_t count, float scale) {
    const int wide = has_wide_normals();
    const int64_t size = wide ? 4 * GROUP : GROUP, groups = (count + size - 1) / size;
    const float factor = (float)(1.4142135623730951 * scale);
    int finite = 1;
#pragma omp parallel for schedule(static) reduction(&& : finite) if (count > 8192)
    for (int64_t group = 0; group < groups; group++) {
        const int here = wide ? add_wide_group(key, call, group, old, new, count, factor)
                              : add_short_group(key, call, group, old, new, count, factor);
        finite = finite && here;
    }
    return finite;
}
