// The arguments of calls on the fast path, which come straight from the interpreter.
#pragma once

#include <Python.h>

namespace antiphon::python {

// Positional and keyword arguments of a fast call, by name.
inline bool read_arguments(const char* function, PyObject* const* arguments, Py_ssize_t count, PyObject* names,
                    const char* const* expected, Py_ssize_t expected_count, Py_ssize_t positional,
                    PyObject** values) {
    if (count > positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments, not %zd", function, positional, count);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; ++i) values[i] = arguments[i];
    const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < named; ++i) {
        PyObject* name = PyTuple_GET_ITEM(names, i);
        Py_ssize_t at = 0;
        while (at < expected_count && PyUnicode_CompareWithASCIIString(name, expected[at]) != 0) ++at;
        if (at == expected_count || values[at] != nullptr) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected or repeated argument %R", function, name);
            return false;
        }
        values[at] = arguments[count + i];
    }
    return true;
}

}  // namespace antiphon::python
