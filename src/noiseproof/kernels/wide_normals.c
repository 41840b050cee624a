/* Wide normals: twice sixteen of ChaCha20's blocks at a time, for processors with vectors of sixteen numbers. */
#define LANES 16
#include "normals.h"

#ifdef SEVERAL_PROCESSORS

int has_wide_normals(void) { return __builtin_cpu_supports("x86-64-v4"); }

__attribute__((target("arch=x86-64-v4"))) int add_wide_group(const uint32_t key[8], uint64_t call, int64_t group,
                                                             const float *old, float *new, int64_t count, float scale) {
    return add_group(key, call, group, old, new, count, scale);
}

__attribute__((target("arch=x86-64-v4"))) void wide_key_stream(const uint32_t key[8], const uint32_t nonce[3],
                                                               uint32_t counter, int kibibytes, uint32_t *stream) {
    key_stream_run(key, nonce, counter, kibibytes, stream);
}

#else

int has_wide_normals(void) { return 0; }

int add_wide_group(const uint32_t key[8], uint64_t call, int64_t group, const float *old, float *new, int64_t count,
                   float scale) {
    (void)key, (void)call, (void)group, (void)old, (void)new, (void)count, (void)scale;
    return 0;
}

void wide_key_stream(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, int kibibytes, uint32_t *stream) {
    (void)key, (void)nonce, (void)counter, (void)kibibytes, (void)stream;
}

#endif
