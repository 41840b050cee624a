/* The Python module `noiseproof.kernels._compiled`: kernels called with addresses, which `__init__.py` makes safe. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

#define ADDRESS(name) ((void *)(uintptr_t)(name))

/* "O&" of arguments: a key of 32 bytes as little-endian words, whatever the machine is. */
static int read_key(PyObject *given, void *to) {
    char *key;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(given, &key, &length) < 0) return 0;
    if (length != 32) {
        PyErr_Format(PyExc_ValueError, "a key has 32 bytes, not %zd", length);
        return 0;
    }
    for (int i = 0; i < 8; i++) {
        const unsigned char *at = (const unsigned char *)key + 4 * i;
        ((uint32_t *)to)[i] = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    }
    return 1;
}

static PyObject *py_add_normals(PyObject *self, PyObject *args) {
    uint32_t parts[8];
    unsigned long long call, old, new;
    long long count;
    float scale;
    if (!PyArg_ParseTuple(args, "O&KKKLf", read_key, parts, &call, &old, &new, &count, &scale)) return NULL;
    int finite;
    Py_BEGIN_ALLOW_THREADS;
    finite = add_normals(parts, call, ADDRESS(old), ADDRESS(new), count, scale);
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(finite);
}

static PyObject *py_make_normals(PyObject *self, PyObject *args) {
    unsigned long long whole, normals;
    long long count;
    if (!PyArg_ParseTuple(args, "KLK", &whole, &count, &normals)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    make_normals(ADDRESS(whole), count, ADDRESS(normals));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* "O&" of arguments: a law as `discrete_noise.AtScale.packed` has it, the one over its tail not included. */
static int read_law(PyObject *given, void *to) {
    unsigned long long table, mask, below;
    Law law = {0};
    if (!PyArg_ParseTuple(given, "KKKpdddd", &table, &mask, &below, &law.squared, &law.scale, &law.constant, &law.tail_log,
                          &law.doubt))
        return 0;
    law.table = ADDRESS(table), law.mask = mask, law.below = below;
    *(Law *)to = law;
    return 1;
}

static PyObject *py_add_law(PyObject *self, PyObject *args) {
    uint32_t key[8];
    Law law, tail;
    unsigned long long value, out, failed;
    long long count, blocks;
    int wide;
    double step;
    if (!PyArg_ParseTuple(args, "O&O&O&KKpLLdK", read_key, key, read_law, &law, read_law, &tail, &value, &out, &wide, &count,
                          &blocks, &step, &failed))
        return NULL;
    law.tail = tail.tail = &tail; /* a geometric law's tail is that law again */
    int64_t failures;
    Py_BEGIN_ALLOW_THREADS;
    failures = add_law(key, &law, ADDRESS(value), ADDRESS(out), wide, count, blocks, step, ADDRESS(failed));
    Py_END_ALLOW_THREADS;
    return PyLong_FromLongLong(failures);
}

static PyObject *py_propose_each(PyObject *self, PyObject *args) {
    unsigned long long random, scale, left, right, accept_below, mask, drawn, undecided;
    long long count;
    if (!PyArg_ParseTuple(args, "KLKKKKKKK", &random, &count, &scale, &left, &right, &accept_below, &mask, &drawn,
                          &undecided))
        return NULL;
    int64_t found;
    Py_BEGIN_ALLOW_THREADS;
    found = propose_each(ADDRESS(random), count, ADDRESS(scale), ADDRESS(left), ADDRESS(right), ADDRESS(accept_below), mask,
                         ADDRESS(drawn), ADDRESS(undecided));
    Py_END_ALLOW_THREADS;
    return PyLong_FromLongLong(found);
}

static PyObject *py_add_on_lattice(PyObject *self, PyObject *args) {
    unsigned long long value, noise, steps, out;
    long long count;
    int each, wide;
    if (!PyArg_ParseTuple(args, "KKLKpKp", &value, &noise, &count, &steps, &each, &out, &wide)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    if (wide) {
        add_doubles_on_lattice(ADDRESS(value), ADDRESS(noise), count, ADDRESS(steps), each, ADDRESS(out));
    } else {
        add_floats_on_lattice(ADDRESS(value), ADDRESS(noise), count, ADDRESS(steps), each, ADDRESS(out));
    }
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_clip_layers(PyObject *self, PyObject *args) {
    PyObject *given;
    long long records, persons = 0;
    unsigned long long weights, ends = 0;
    float clip, share;
    if (!PyArg_ParseTuple(args, "O!LffK|KL", &PyList_Type, &given, &records, &clip, &share, &weights, &ends, &persons))
        return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(given);
    if (count > MOST_LAYERS) return PyErr_Format(PyExc_ValueError, "at most %d layers", MOST_LAYERS);
    Layer layers[MOST_LAYERS];
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned long long errors, activations, products, sums;
        long long error_columns, activation_columns;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(given, i), "KLKLKK", &errors, &error_columns, &activations,
                              &activation_columns, &products, &sums))
            return NULL;
        layers[i] = (Layer){ADDRESS(errors),    error_columns,   ADDRESS(activations),
                            activation_columns, ADDRESS(products), ADDRESS(sums)};
    }
    int positive;
    Py_BEGIN_ALLOW_THREADS;
    positive = clip_layers(layers, (int)count, records, ADDRESS(ends), ends ? persons : records, clip, share, ADDRESS(weights));
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(positive);
}

static PyObject *py_sum_rows(PyObject *self, PyObject *args) {
    unsigned long long rows, weights, places;
    long long count, size;
    int sums;
    if (!PyArg_ParseTuple(args, "KLLKKi", &rows, &count, &size, &weights, &places, &sums)) return NULL;
    if (sums > MOST_SUMS) return PyErr_Format(PyExc_ValueError, "at most %d sums", MOST_SUMS);
    Py_BEGIN_ALLOW_THREADS;
    sum_rows(ADDRESS(rows), count, size, ADDRESS(weights), ADDRESS(places), sums);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_merge_rows(PyObject *self, PyObject *args) {
    unsigned long long values, owners, rows, merged, new_owners, new_rows;
    long long count, width;
    if (!PyArg_ParseTuple(args, "KKKLLKKK", &values, &owners, &rows, &count, &width, &merged, &new_owners, &new_rows)) return NULL;
    int64_t found;
    Py_BEGIN_ALLOW_THREADS;
    found = merge_rows(ADDRESS(values), ADDRESS(owners), ADDRESS(rows), count, width, ADDRESS(merged), ADDRESS(new_owners),
                       ADDRESS(new_rows));
    Py_END_ALLOW_THREADS;
    return PyLong_FromLongLong(found);
}

static PyObject *py_add_squares(PyObject *self, PyObject *args) {
    unsigned long long values, owners, out;
    long long count, width;
    if (!PyArg_ParseTuple(args, "KKLLK", &values, &owners, &count, &width, &out)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    add_squares(ADDRESS(values), ADDRESS(owners), count, width, ADDRESS(out));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_add_rows(PyObject *self, PyObject *args) {
    unsigned long long values, places, rows, weights, out;
    long long count, width;
    if (!PyArg_ParseTuple(args, "KKKLLKK", &values, &places, &rows, &count, &width, &weights, &out)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    add_rows(ADDRESS(values), ADDRESS(places), ADDRESS(rows), count, width, ADDRESS(weights), ADDRESS(out));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_sum_channels(PyObject *self, PyObject *args) {
    unsigned long long errors, inputs, sums, products;
    long long count, places;
    if (!PyArg_ParseTuple(args, "KKLLKK", &errors, &inputs, &count, &places, &sums, &products)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    sum_channels(ADDRESS(errors), ADDRESS(inputs), count, places, ADDRESS(sums), ADDRESS(products));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_sum_products(PyObject *self, PyObject *args) {
    unsigned long long errors, activations, weights, products;
    long long records, error_columns, activation_columns;
    if (!PyArg_ParseTuple(args, "KLKLLKK", &errors, &error_columns, &activations, &activation_columns, &records, &weights,
                          &products))
        return NULL;
    const Layer layer = {ADDRESS(errors), error_columns, ADDRESS(activations), activation_columns, ADDRESS(products), NULL};
    int done;
    Py_BEGIN_ALLOW_THREADS;
    done = sum_products(&layer, records, ADDRESS(weights));
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(done);
}

static PyObject *py_multiply_rows(PyObject *self, PyObject *args) {
    unsigned long long vectors, out;
    long long records, record_stride, count, stride, wide;
    if (!PyArg_ParseTuple(args, "KLLLLLK", &vectors, &records, &record_stride, &count, &stride, &wide, &out)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    multiply_rows(ADDRESS(vectors), records, record_stride, count, stride, wide, ADDRESS(out));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_lstm_forward(PyObject *self, PyObject *args) {
    unsigned long long gates, across, hidden, cell, squashed;
    long long padded, steps, records, width;
    if (!PyArg_ParseTuple(args, "KKLKKKLLL", &gates, &across, &padded, &hidden, &cell, &squashed, &steps, &records, &width))
        return NULL;
    int done;
    Py_BEGIN_ALLOW_THREADS;
    done = lstm_forward(ADDRESS(gates), ADDRESS(across), padded, ADDRESS(hidden), ADDRESS(cell), ADDRESS(squashed), steps,
                        records, width);
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(done);
}

static PyObject *py_lstm_backward(PyObject *self, PyObject *args) {
    unsigned long long gates, cell, squashed, weight, errors, hidden_error, cell_error, at_gates;
    long long padded, by_step, by_record, steps, records, width;
    if (!PyArg_ParseTuple(args, "KKKKLKLLKKKLLL", &gates, &cell, &squashed, &weight, &padded, &errors, &by_step, &by_record,
                          &hidden_error, &cell_error, &at_gates, &steps, &records, &width))
        return NULL;
    int done;
    Py_BEGIN_ALLOW_THREADS;
    done = lstm_backward(ADDRESS(gates), ADDRESS(cell), ADDRESS(squashed), ADDRESS(weight), padded, ADDRESS(errors),
                         by_step, by_record, ADDRESS(hidden_error), ADDRESS(cell_error), ADDRESS(at_gates), steps, records,
                         width);
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(done);
}

static PyObject *py_answer(PyObject *self, PyObject *args) {
    unsigned long long logits, uniforms, noise, answers;
    long long queries, classes;
    float keenness;
    if (!PyArg_ParseTuple(args, "KLLfKKK", &logits, &queries, &classes, &keenness, &uniforms, &noise, &answers))
        return NULL;
    if (classes > MOST_CLASSES) return PyErr_Format(PyExc_ValueError, "at most %d classes", MOST_CLASSES);
    Py_BEGIN_ALLOW_THREADS;
    answer(ADDRESS(logits), queries, classes, keenness, ADDRESS(uniforms), ADDRESS(noise), ADDRESS(answers));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"add_normals", py_add_normals, METH_VARARGS, "See kernels.h."},
    {"make_normals", py_make_normals, METH_VARARGS, "See kernels.h."},
    {"add_law", py_add_law, METH_VARARGS, "See kernels.h."},
    {"propose_each", py_propose_each, METH_VARARGS, "See kernels.h."},
    {"add_on_lattice", py_add_on_lattice, METH_VARARGS, "See kernels.h."},
    {"clip_layers", py_clip_layers, METH_VARARGS, "See kernels.h."},
    {"sum_rows", py_sum_rows, METH_VARARGS, "See kernels.h."},
    {"merge_rows", py_merge_rows, METH_VARARGS, "See kernels.h."},
    {"add_squares", py_add_squares, METH_VARARGS, "See kernels.h."},
    {"add_rows", py_add_rows, METH_VARARGS, "See kernels.h."},
    {"sum_channels", py_sum_channels, METH_VARARGS, "See kernels.h."},
    {"sum_products", py_sum_products, METH_VARARGS, "See kernels.h."},
    {"multiply_rows", py_multiply_rows, METH_VARARGS, "See kernels.h."},
    {"lstm_forward", py_lstm_forward, METH_VARARGS, "See kernels.h."},
    {"lstm_backward", py_lstm_backward, METH_VARARGS, "See kernels.h."},
    {"answer", py_answer, METH_VARARGS, "See kernels.h."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddIntMacro(module, MOST_CLASSES) < 0 || PyModule_AddIntMacro(module, MOST_LAYERS) < 0 ||
                   PyModule_AddIntMacro(module, PADDING) < 0 || PyModule_AddIntMacro(module, VERSION) < 0))
        Py_CLEAR(module);
    return module;
}
