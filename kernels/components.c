/* Connected components in memory, by union-find: each tree of the forest becomes a component. */

#include "dedup.h"

/* Maps the ids of nodes to indices. */
typedef struct {
    int64_t *ids;
    uint32_t *slots; /* index of a node, plus one; 0: free */
    uint32_t *parents;
    size_t count, size;
} Forest;

static uint32_t node_of(Forest *forest, int64_t id) {
    size_t at = (size_t)scramble((uint64_t)id) & (forest->size - 1);
    while (forest->slots[at] && forest->ids[forest->slots[at] - 1] != id)
        at = (at + 1) & (forest->size - 1);
    if (!forest->slots[at]) {
        forest->ids[forest->count] = id;
        forest->parents[forest->count] = (uint32_t)forest->count;
        forest->slots[at] = (uint32_t)++forest->count;
    }
    return forest->slots[at] - 1;
}

static uint32_t root_of(uint32_t *parents, uint32_t node) {
    while (parents[node] != node)
        node = parents[node] = parents[parents[node]];
    return node;
}

/* The root of a tree is its smallest id, so that the name of a component does not depend on the order of edges. */
static void join(Forest *forest, uint32_t a, uint32_t b) {
    a = root_of(forest->parents, a), b = root_of(forest->parents, b);
    if (a == b)
        return;
    if (forest->ids[a] < forest->ids[b])
        forest->parents[b] = a;
    else
        forest->parents[a] = b;
}

static int forest_open(Forest *forest, size_t edges) {
    forest->count = 0;
    for (forest->size = 16; forest->size < 4 * edges; forest->size *= 2)
        ;
    forest->slots = calloc(forest->size, sizeof *forest->slots);
    forest->ids = malloc((2 * edges + 1) * sizeof *forest->ids);
    forest->parents = malloc((2 * edges + 1) * sizeof *forest->parents);
    return forest->slots && forest->ids && forest->parents ? 0 : -1;
}

static void forest_close(Forest *forest) {
    free(forest->slots);
    free(forest->ids);
    free(forest->parents);
}

/* components(u, v): buffers of 64-bit integers to the ids of nodes, in order of appearance, and of the least node that
   each is connected with. */
PyObject *components(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer u, v;
    PyObject *result = NULL, *nodes = NULL, *roots = NULL;
    if (!PyArg_ParseTuple(args, "y*y*", &u, &v))
        return NULL;
    size_t edges = (size_t)u.len / 8;
    Forest forest = {0};
    if (u.len != v.len || u.len % 8 || edges >= UINT32_MAX / 2)
        PyErr_SetString(PyExc_ValueError, "components takes two buffers of as many 64-bit integers, below 2 billion");
    else if (forest_open(&forest, edges))
        PyErr_NoMemory();
    else {
        const int64_t *from = u.buf, *to = v.buf;
        Py_BEGIN_ALLOW_THREADS;
        for (size_t edge = 0; edge < edges; edge++) {
            uint32_t a = node_of(&forest, from[edge]);
            join(&forest, a, node_of(&forest, to[edge]));
        }
        Py_END_ALLOW_THREADS;
        nodes = PyBytes_FromStringAndSize((char *)forest.ids, (Py_ssize_t)forest.count * 8);
        roots = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)forest.count * 8);
        if (nodes && roots) {
            int64_t *found = (int64_t *)(void *)PyBytes_AS_STRING(roots);
            for (uint32_t node = 0; node < forest.count; node++)
                found[node] = forest.ids[root_of(forest.parents, node)];
            result = PyTuple_Pack(2, nodes, roots);
        }
        Py_XDECREF(nodes);
        Py_XDECREF(roots);
    }
    forest_close(&forest);
    PyBuffer_Release(&u);
    PyBuffer_Release(&v);
    return result;
}

/* forest(u, v): a byte for each edge, which is 1 where it joins what the edges before it have not. */
PyObject *forest(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer u, v;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*", &u, &v))
        return NULL;
    size_t edges = (size_t)u.len / 8;
    Forest forest = {0};
    if (u.len != v.len || u.len % 8 || edges >= UINT32_MAX / 2)
        PyErr_SetString(PyExc_ValueError, "forest takes two buffers of as many 64-bit integers, below 2 billion");
    else if (forest_open(&forest, edges))
        PyErr_NoMemory();
    else if ((result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)edges))) {
        const int64_t *from = u.buf, *to = v.buf;
        char *joins = PyBytes_AS_STRING(result);
        Py_BEGIN_ALLOW_THREADS;
        for (size_t edge = 0; edge < edges; edge++) {
            uint32_t a = node_of(&forest, from[edge]), b = node_of(&forest, to[edge]);
            joins[edge] = root_of(forest.parents, a) != root_of(forest.parents, b);
            join(&forest, a, b);
        }
        Py_END_ALLOW_THREADS;
    }
    forest_close(&forest);
    PyBuffer_Release(&u);
    PyBuffer_Release(&v);
    return result;
}
