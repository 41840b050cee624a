/* The kernels: what each computes. Matrices lie row after row, without gaps. */
#ifndef NOISEPROOF_KERNELS_H
#define NOISEPROOF_KERNELS_H

#include <stdint.h>

/* normals.c: new[i] = old[i] + scale * (a standard normal), for i below count; 0 if some old[i] is not finite, else 1.
 * The bits are ChaCha20's, under `key`; the nonce is the number of the block of 2^17 coordinates, then `call`. */
int add_normals(const uint32_t key[8], uint64_t call, const float *old, float *new, int64_t count, float scale);

/* normals.c: what `add_normals` makes of ChaCha20's bits, read as integers: standard normals over sqrt(2). */
void make_normals(const int32_t *whole, int64_t count, float *normals);

/* lattice.c: discrete_noise.py's `_propose` at one scale. `drawn` gets a proposal a random word; the result says how many
 * of them their first bits leave undecided, and `undecided` (of length `count`) gets their indices, in order. */
int64_t propose(const uint64_t *random, int64_t count, const int64_t *left, const uint64_t *width,
                const uint64_t *accept_below, uint64_t mask, int64_t *drawn, int64_t *undecided);

/* The same with a scale a draw; `left` and `right` are the intervals' ends in units of the scale. */
int64_t propose_each(const uint64_t *random, int64_t count, const double *scale, const double *left, const double *right,
                     const uint64_t *accept_below, uint64_t mask, int64_t *drawn, int64_t *undecided);

/* lattice.c: out[i] = step * (value[i] / step, rounded, + noise[i]); steps are powers of two, one or one each. */
void add_floats_on_lattice(const float *value, const int64_t *noise, int64_t count, const double *steps, int each,
                           float *out);
void add_doubles_on_lattice(const double *value, const int64_t *noise, int64_t count, const double *steps, int each,
                            double *out);

/* A layer that saw one row a record: its weight's gradients are outer products of errors and activations, its bias's
 * are the errors. */
typedef struct {
    const float *errors;
    int64_t error_columns;
    const float *activations; /* NULL if the weight is not trained */
    int64_t activation_columns;
    float *scaled; /* where the clipped errors go; NULL if the weight is not trained */
    float *sums;   /* where the sum of the clipped errors goes; NULL if no bias is trained */
} Layer;

#define MOST_LAYERS 64

/* clipping.c: every record's errors times the same weight, share * min(1, clip / norm), where the norm is that of the
 * record's gradient over all layers. 0 if some weight is not positive, and then nothing else is to be used. */
int clip_layers(const Layer *layers, int count, int64_t records, float clip, float share, float *weights);

/* neuron.c: Algorithm 1 of Lu et al. on every row of logits; `uniforms` choose the neurons, `noise` is added to them. */
void answer(const float *logits, int64_t queries, int64_t classes, float keenness, const float *uniforms,
            const float *noise, float *answers);

#define MOST_CLASSES 1024 /* that `answer` takes */

#endif
