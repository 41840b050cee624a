/* Neuron: an answer of Algorithm 1 (Lu et al. 2022), eight queries at a time. */
#include "kernels.h"
#include "vectors.h"

/* e^(z - max z), and their sum. */
HELPER floats exponentials(const floats *z, int64_t classes, floats *p) {
    floats most = z[0], total = {0};
    for (int64_t c = 1; c < classes; c++) most = larger(z[c], most);
    for (int64_t c = 0; c < classes; c++) total += p[c] = exponential(z[c] - most);
    return total;
}

CLONED static void answer_group(const float *logits, int64_t queries, int64_t classes, float keenness,
                                const float *uniforms, const float *noise, float *answers) {
    floats z[MOST_CLASSES], p[MOST_CLASSES], u = {0}, draws = {0};
    const int64_t here = queries < LANES ? queries : LANES;
    for (int64_t c = 0; c < classes; c++) z[c] = (floats){0};
    for (int64_t query = 0; query < here; query++) {
        for (int64_t c = 0; c < classes; c++) z[c][query] = logits[query * classes + c];
        u[query] = uniforms[query];
        draws[query] = noise[query];
    }
    /* The exponential mechanism, whose utilities are the probabilities. */
    floats factor = keenness / exponentials(z, classes, p);
    for (int64_t c = 0; c < classes; c++) p[c] *= factor;
    floats threshold = u * exponentials(p, classes, p), below = {0};
    ints chosen = {0};
    for (int64_t c = 0; c + 1 < classes; c++) {
        below += p[c];
        chosen -= below < threshold; /* true is -1 */
    }
    for (int64_t c = 0; c < classes; c++) z[c] += select_floats(chosen == (int32_t)c, draws, (floats){0});
    floats share = 1.0f / exponentials(z, classes, p);
    for (int64_t c = 0; c < classes; c++) p[c] *= share;
    for (int64_t query = 0; query < here; query++) {
        for (int64_t c = 0; c < classes; c++) answers[query * classes + c] = p[c][query];
    }
}

void answer(const float *logits, int64_t queries, int64_t classes, float keenness, const float *uniforms,
            const float *noise, float *answers) {
    const int64_t groups = (queries + LANES - 1) / LANES;
#pragma omp parallel for schedule(static) if (queries * classes > 4096)
    for (int64_t group = 0; group < groups; group++) {
        const int64_t first = group * LANES;
        answer_group(logits + first * classes, queries - first, classes, keenness, uniforms + first, noise + first,
                     answers + first * classes);
    }
}
