/* Wide products: tiles for processors with vectors of sixteen numbers. */
#define LANES 16
#include "products.h"

#ifdef SEVERAL_PROCESSORS

__attribute__((target("arch=x86-64-v4"))) void add_wide_products(const float *packed, int64_t first, int64_t last, int64_t high,
                                                                 const float *rows, int64_t wide, int64_t panel,
                                                                 int64_t depth, int more, float *out) {
    add_products(packed, first, last, high, rows, wide, panel, depth, more, out);
}

__attribute__((target("arch=x86-64-v4"))) void wide_inner_products(const float *rows, int64_t count, int64_t stride,
                                                                   int64_t wide, float *out) {
    inner_products(rows, count, stride, wide, out);
}

#else

void add_wide_products(const float *packed, int64_t first, int64_t last, int64_t high, const float *rows, int64_t wide,
                       int64_t panel, int64_t depth, int more, float *out) {
    (void)packed, (void)first, (void)last, (void)high, (void)rows, (void)wide, (void)panel, (void)depth, (void)more, (void)out;
}

void wide_inner_products(const float *rows, int64_t count, int64_t stride, int64_t wide, float *out) {
    (void)rows, (void)count, (void)stride, (void)wide, (void)out;
}

#endif
