/* The kernels: what each computes. Matrices lie row after row, without gaps. */
#ifndef NOISEPROOF_KERNELS_H
#define NOISEPROOF_KERNELS_H

#include <stdint.h>

#define VERSION 7 /* of the functions below; __init__.py leaves a library of another version alone */

/* normals.c: new[i] = old[i] + scale * (a standard normal), for i below count; 0 if some old[i] is not finite, else 1.
 * The bits are ChaCha20's, under `key`; the nonce is the number of the block of 2^17 coordinates, then `call`. */
int add_normals(const uint32_t key[8], uint64_t call, const float *old, float *new, int64_t count, float scale);

/* normals.c: what `add_normals` makes of ChaCha20's bits, read as integers: standard normals over sqrt(2). */
void make_normals(const int32_t *whole, int64_t count, float *normals);

/* normals.c: `kibibytes` times 1,024 bytes of ChaCha20's key stream, from its block number `counter` (of 64 bytes) on. */
void fill_stream(const uint32_t key[8], const uint32_t nonce[3], uint32_t counter, int kibibytes, uint32_t *stream);

/* A law at one scale, as discrete_noise.py's `AtScale` has it. */
typedef struct Law {
    /* By entry, in pairs: where its interval begins (an int64_t), and in 32 bits each how wide it is (0 for a tail) and,
     * above, half of the value below which the first bits of the fraction accept a proposal. */
    const uint64_t *table;
    uint64_t mask;   /* the bits of a word that pick its entry */
    uint64_t below;  /* the one of them that is set for integers below 0; 0 if there are none */
    int squared;     /* whether -log w(x) is (x / scale)^2 / 2, else |x| / scale */
    double scale;    /* s */
    double constant; /* C */
    double tail_log; /* log of K C (1 - e^(-1/h)) */
    double doubt;    /* what float64 may be off by */
    const struct Law *tail; /* the geometric law over the tail, whose scale is h */
} Law;

/* lattice.c: secure.py's `add` at one scale, with the blocks' streams and boundaries of randomness.py's `in_blocks`: out is
 * value, rounded to multiples of `step`, plus draws of the law. `wide` says that numbers are doubles. Blocks with a draw
 * that float64 cannot decide are left alone; `failed` (of length `blocks`) gets their numbers, in any order, and the result
 * is how many they are, or -1 if some value is not finite. */
int64_t add_law(const uint32_t key[8], const Law *law, const void *value, void *out, int wide, int64_t count,
                int64_t blocks, double step, int64_t *failed);

/* discrete_noise.py's `_propose` with a scale a draw: `drawn` gets a proposal a random word; the result says how many
 * of them their first bits leave undecided, and `undecided` (of length `count`) gets their indices, in order. `left` and
 * `right` are the intervals' ends in units of the scale. */
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
    float *products; /* where the sum of the weight's clipped gradients goes; NULL if it is not trained */
    float *sums;     /* where the sum of the clipped errors goes, the bias's; NULL if none is trained */
} Layer;

#define MOST_LAYERS 64

/* clipping.c: sums of every record's gradients times share * min(1, clip / norm), where the norm is that of the
 * record's gradient over all layers, and `weights` gets these factors; with `ends` that of its person's, which is the sum over records from ends[p - 1] to before
 * ends[p]. 0 if some weight is not positive, and then nothing else is to be used. */
int clip_layers(const Layer *layers, int count, int64_t records, const int64_t *ends, int64_t persons, float clip, float share,
                float *weights);

#define MOST_SUMS 4

/* histories.c: rows[places[k]] = sum over r of weights[k][r] * rows[r], for k below `sums`, all from the rows as they were.
 * `weights` has MOST_SUMS rows, of which those from `sums` on are not used. */
void sum_rows(float *rows, int64_t count, int64_t size, const float *weights, const int64_t *places, int sums);

/* rows.c: the gradients of a table's rows, each looked up by one of several owners; those of one owner and row become one, which
 * stands where the first stood. `merged`,
 * `new_owners` and `new_rows` have room for `count`; the result says how many there are. -1, and nothing done, if the owners are not
 * in order or there is no memory. */
int64_t merge_rows(const float *values, const int64_t *owners, const int64_t *rows, int64_t count, int64_t width, float *merged,
                   int64_t *new_owners, int64_t *new_rows);

/* rows.c: out[owners[i]] += the sum of values[i]'s squares, for i below count. */
void add_squares(const float *values, const int64_t *owners, int64_t count, int64_t width, double *out);

/* rows.c: out[rows[i]] += weights[i] * values[places[i]], for i below count; values[i] without places. */
void add_rows(const float *values, const int64_t *places, const int64_t *rows, int64_t count, int64_t width, const float *weights,
              float *out);

/* rows.c: the sums of every channel's errors, and of their products with its inputs, over `places`. */
void sum_channels(const float *errors, const float *inputs, int64_t count, int64_t places, double *sums, double *products);

/* products.c: the sums of one layer, where every record's gradient is multiplied by its weight; 0 if there is no memory. */
int sum_products(const Layer *layer, int64_t records, const float *weights);

/* products.c: out (records, count, count) has the inner products of each record's `count` vectors of `wide` numbers, at least
 * 16, which lie `stride` apart. */
void multiply_rows(const float *vectors, int64_t records, int64_t record_stride, int64_t count, int64_t stride, int64_t wide,
                   float *out);

/* products.c: out (count, wide) = rows (count, deep) times matrix (deep, wide), by one thread; `wide` is a multiple of PADDING, and
 * `packed` has room for `room_to_multiply(count)` numbers. */
void multiply_block(const float *rows, int64_t count, int64_t deep, const float *matrix, int64_t wide, float *packed,
                    float *out);
int64_t room_to_multiply(int64_t count);

#define PADDING 48

/* lstm.c: all steps of a layer of `width` hidden numbers. `gates` (steps, records, 4 * width) has the input's share of i, f, g, o
 * and becomes the gates; `hidden` and `cell` (steps + 1, records, width) have the first states; `squashed` gets the cell's tanh.
 * `across` (width, padded) is the hidden state's weight, turned. 0 if there is no memory. */
int lstm_forward(float *gates, const float *across, int64_t padded, float *hidden, float *cell, float *squashed,
                 int64_t steps, int64_t records, int64_t width);

/* lstm.c: `at_gates`, the errors at all steps' gates, from those at the hidden states. `hidden_error` and `cell_error` have those of
 * the last states and get those of the first; `errors` are those at the outputs, so far apart by step and
 * by record. `weight` is (4 * width, padded). */
int lstm_backward(const float *gates, const float *cell, const float *squashed, const float *weight, int64_t padded,
                  const float *errors, int64_t by_step, int64_t by_record, float *hidden_error, float *cell_error,
                  float *at_gates, int64_t steps, int64_t records, int64_t width);

/* neuron.c: Algorithm 1 of Lu et al. on every row of logits; `uniforms` choose the neurons, `noise` is added to them. */
void answer(const float *logits, int64_t queries, int64_t classes, float keenness, const float *uniforms,
            const float *noise, float *answers);

#define MOST_CLASSES 1024 /* that `answer` takes */

#endif
