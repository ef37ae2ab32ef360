#include "bindings/batch.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace antiphon::python {

namespace {

// Memory with an owner, exported as a read-only buffer.
struct Memory {
    PyObject_HEAD
    Buffer* buffer;     // the owner of `data` when it was received in place
    void* allocated;    // or our own
    const char* data;
    Py_ssize_t bytes, items;
    const char* format;
};

PyTypeObject* memory_type = nullptr;
PyTypeObject* batch_type = nullptr;

void memory_dealloc(PyObject* self) {
    auto* memory = reinterpret_cast<Memory*>(self);
    PyTypeObject* type = Py_TYPE(self);
    if (memory->buffer) memory->buffer->release();
    std::free(memory->allocated);
    type->tp_free(self);
    Py_DECREF(type);
}

int memory_getbuffer(PyObject* self, Py_buffer* view, int flags) {
    auto* memory = reinterpret_cast<Memory*>(self);
    const Py_ssize_t itemsize = memory->items == 0 && memory->bytes == 0 ? 1 : memory->bytes / std::max<Py_ssize_t>(1, memory->items);
    if (PyBuffer_FillInfo(view, self, const_cast<char*>(memory->data), memory->bytes, 1, flags) != 0) return -1;
    if (memory->format != nullptr && (flags & PyBUF_FORMAT) == PyBUF_FORMAT) {
        view->format = const_cast<char*>(memory->format);
        view->itemsize = itemsize;
        // One dimension of `items`; the shape lives in the object, as long as the view does.
        if ((flags & PyBUF_ND) == PyBUF_ND) view->shape = &memory->items;
        if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) view->strides = &view->itemsize;
    }
    return 0;
}

Memory* new_memory() {
    auto* memory = reinterpret_cast<Memory*>(memory_type->tp_alloc(memory_type, 0));
    return memory;
}

const Memory* offsets_of(PyObject* self) {
    return reinterpret_cast<Memory*>(reinterpret_cast<BatchObject*>(self)->offsets);
}

Py_ssize_t batch_length(PyObject* self) { return offsets_of(self)->items - 1; }

PyObject* batch_item(PyObject* self, Py_ssize_t index) {
    const Memory* offsets = offsets_of(self);
    if (index < 0 || index >= offsets->items - 1) {
        PyErr_SetString(PyExc_IndexError, "batch index out of range");
        return nullptr;
    }
    std::int32_t span[2];
    std::memcpy(span, offsets->data + 4 * index, 8);
    const auto* data = reinterpret_cast<Memory*>(reinterpret_cast<BatchObject*>(self)->data);
    return PyBytes_FromStringAndSize(data->data + span[0], span[1] - span[0]);
}

PyObject* batch_data(PyObject* self, void*) {
    return PyMemoryView_FromObject(reinterpret_cast<BatchObject*>(self)->data);
}

PyObject* batch_offsets(PyObject* self, void*) {
    return PyMemoryView_FromObject(reinterpret_cast<BatchObject*>(self)->offsets);
}

PyObject* batch_to_arrow(PyObject* self, PyObject*) {
    PyObject* module = PyImport_ImportModule("antiphon.node.arrow");
    if (module == nullptr) return nullptr;
    PyObject* array = PyObject_CallMethod(module, "binary_array", "O", self);
    Py_DECREF(module);
    return array;
}

PyObject* batch_repr(PyObject* self) {
    const std::string_view name = Py_TYPE(self)->tp_name;
    const std::string own(name.substr(name.rfind('.') + 1));
    auto* data = reinterpret_cast<Memory*>(reinterpret_cast<BatchObject*>(self)->data);
    return PyUnicode_FromFormat("<%s of %zd, %zd bytes>", own.c_str(), batch_length(self), data->bytes);
}

PyObject* refuse_pickle(PyObject*, PyObject*) {
    PyErr_SetString(PyExc_TypeError,
                    "a Batch refers to a receive buffer and cannot be pickled; pass bytes(batch.data) and "
                    "list(batch.offsets), or batch.to_arrow()");
    return nullptr;
}

PyMethodDef batch_methods[] = {
    {"to_arrow", batch_to_arrow, METH_NOARGS,
     "to_arrow($self)\n--\n\nThe messages as a pyarrow.BinaryArray, without a copy. Never blocks. Raises ConfigError "
     "without pyarrow."},
    {"__reduce__", refuse_pickle, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef batch_attributes[] = {
    {"data", batch_data, nullptr, "All payloads without a gap, as a read-only memoryview.", nullptr},
    {"offsets", batch_offsets, nullptr, "Where each payload begins, and the end: len(batch) + 1 int32.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

const char batch_doc[] =
    "Many messages of one sender, as one buffer and offsets.\n\n"
    "len(), iteration and indexing give bytes, made one at a time; .data and .offsets are buffers\n"
    "without a copy. A batch that is kept holds its receive buffer; when too many are held, the\n"
    "library copies instead. Never blocks.";

}  // namespace

bool add_batch_types(PyObject* module) {
    PyType_Slot memory_slots[] = {
        {Py_tp_dealloc, reinterpret_cast<void*>(memory_dealloc)},
        {Py_bf_getbuffer, reinterpret_cast<void*>(memory_getbuffer)},
        {0, nullptr},
    };
    PyType_Spec memory_spec{"antiphon._core.Memory", sizeof(Memory), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots};
    memory_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&memory_spec));
    PyType_Slot batch_slots[] = {
        {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_batch)},
        {Py_tp_methods, batch_methods},
        {Py_tp_getset, batch_attributes},
        {Py_tp_repr, reinterpret_cast<void*>(batch_repr)},
        {Py_sq_length, reinterpret_cast<void*>(batch_length)},
        {Py_sq_item, reinterpret_cast<void*>(batch_item)},
        {Py_tp_doc, const_cast<char*>(batch_doc)},
        {0, nullptr},
    };
    PyType_Spec batch_spec{"antiphon._core.Batch", sizeof(BatchObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_BASETYPE, batch_slots};
    batch_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&batch_spec));
    return memory_type && batch_type &&
           PyModule_AddObjectRef(module, "Batch", reinterpret_cast<PyObject*>(batch_type)) == 0;
}

PyTypeObject* batch_base() { return batch_type; }

void dealloc_batch(PyObject* self) {
    auto* batch = reinterpret_cast<BatchObject*>(self);
    PyTypeObject* type = Py_TYPE(self);
    Py_XDECREF(batch->data);
    Py_XDECREF(batch->offsets);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject* new_memory(std::size_t bytes, std::size_t items, const char* format, char*& at) {
    Memory* memory = new_memory();
    at = static_cast<char*>(std::malloc(bytes == 0 ? 1 : bytes));
    if (memory == nullptr || at == nullptr) {
        std::free(at);
        Py_XDECREF(memory);
        return PyErr_NoMemory();
    }
    memory->allocated = at;
    memory->data = at;
    memory->bytes = static_cast<Py_ssize_t>(bytes);
    memory->items = static_cast<Py_ssize_t>(items);
    memory->format = format;
    return reinterpret_cast<PyObject*>(memory);
}

PyObject* make_batch(const Run& run, RunCursor cursor) {
    const std::uint32_t count = cursor.left();
    Memory* offsets = new_memory();
    Memory* data = new_memory();
    auto* batch = reinterpret_cast<BatchObject*>(batch_type->tp_alloc(batch_type, 0));
    auto* starts = static_cast<std::int32_t*>(std::malloc(4 * (static_cast<std::size_t>(count) + 1)));
    if (!offsets || !data || !batch || !starts) {
        std::free(starts);
        Py_XDECREF(offsets);
        Py_XDECREF(data);
        Py_XDECREF(batch);
        return PyErr_NoMemory();
    }
    offsets->allocated = starts;
    offsets->data = reinterpret_cast<char*>(starts);
    offsets->items = count + 1;
    offsets->bytes = 4 * offsets->items;
    offsets->format = "i";
    batch->offsets = reinterpret_cast<PyObject*>(offsets);
    batch->data = reinterpret_cast<PyObject*>(data);

    RunCursor walk = cursor;
    const char* at = nullptr;
    const char* first = nullptr;
    std::size_t size = 0, total = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        walk.next(at, size);
        if (i == 0) first = at;
        starts[i] = static_cast<std::int32_t>(total);
        total += size;
    }
    starts[count] = static_cast<std::int32_t>(total);
    data->bytes = static_cast<Py_ssize_t>(total);
    if (run.shape != Run::Shape::frames && run.buffer->pin()) {
        run.buffer->retain();
        data->buffer = run.buffer;
        data->data = first;
        return reinterpret_cast<PyObject*>(batch);
    }
    auto* copy = static_cast<char*>(std::malloc(total == 0 ? 1 : total));
    if (copy == nullptr) {
        Py_DECREF(batch);
        return PyErr_NoMemory();
    }
    data->allocated = copy;
    data->data = copy;
    walk = cursor;
    for (std::uint32_t i = 0; i < count; ++i) {
        walk.next(at, size);
        std::memcpy(copy, at, size);
        copy += size;
    }
    return reinterpret_cast<PyObject*>(batch);
}

}  // namespace antiphon::python
