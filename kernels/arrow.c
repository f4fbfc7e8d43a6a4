#include "arrow.h"

int column_open(Column *column, PyObject *object) {
    column->owner = PyObject_CallMethod(object, "__arrow_c_array__", NULL);
    if (!column->owner)
        return -1;
    if (!PyTuple_Check(column->owner) || PyTuple_GET_SIZE(column->owner) != 2) {
        PyErr_SetString(PyExc_TypeError, "__arrow_c_array__ must return a schema and an array");
        column_close(column);
        return -1;
    }
    const struct ArrowSchema *schema = PyCapsule_GetPointer(PyTuple_GET_ITEM(column->owner, 0), "arrow_schema");
    const struct ArrowArray *array = schema ? PyCapsule_GetPointer(PyTuple_GET_ITEM(column->owner, 1), "arrow_array") : NULL;
    if (!array) {
        column_close(column);
        return -1;
    }
    column->array = array;
    column->format = schema->format;
    return 0;
}

void column_close(Column *column) { Py_CLEAR(column->owner); }

int column_is_text(const Column *column) {
    const char *format = column->format;
    return (format[0] == 'u' || format[0] == 'U') && !format[1] && column->array->n_buffers == 3;
}

int column_is_bytes(const Column *column) {
    const char *format = column->format;
    return column_is_text(column) || ((format[0] == 'z' || format[0] == 'Z') && !format[1] && column->array->n_buffers == 3);
}
