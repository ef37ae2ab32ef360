#include "bindings/event.hpp"

#include <cstddef>

#include "bindings/batch.hpp"

namespace antiphon::python {

namespace {

// Never given back: static objects outlive the interpreter.
PyObject *decode_properties = nullptr, *decode_message = nullptr, *decode_topic = nullptr;

struct EventObject {
    PyObject_HEAD
    PyObject* data;
    PyObject* topic;       // a name; of a number or a tag, until somebody looks at it
    PyObject* properties;  // bytes until somebody looks at them; null: none
    std::int64_t time_ns;
    std::uint64_t sequence;
    double late;
    std::uint32_t missed;
    std::uint16_t source;
    std::uint8_t attempt;
    AckOf ack;
    std::shared_ptr<Acks>* acks;  // of one that the program acknowledges, until it has; else null
};

struct EventBatchObject {
    BatchObject base;
    PyObject* topic;
    PyObject* sequences;
    PyObject* times_ns;
    PyObject* sources;
    PyObject* properties;  // a list of bytes until somebody looks at them; null: none has any
    std::uint32_t missed;
    std::uint8_t attempt;
    bool decoded;
};

PyTypeObject* event_type = nullptr;
PyTypeObject* event_batch_type = nullptr;

EventObject& event_of(PyObject* self) { return *reinterpret_cast<EventObject*>(self); }
EventBatchObject& batch_of(PyObject* self) { return *reinterpret_cast<EventBatchObject*>(self); }

Reference properties_of(PyObject* bytes) {
    if (bytes == nullptr) return Reference::steal(PyDict_New());
    if (!decode_properties) {
        PyErr_SetString(PyExc_RuntimeError, "antiphon.topics is not imported");
        return {};
    }
    return Reference::steal(PyObject_CallOneArg(decode_properties, bytes));
}

// What a topic's name stands for: a text that begins with a slash is no name, but a number or a tag.
PyObject* topic_of(PyObject*& topic) {
    if (PyUnicode_CheckExact(topic) && PyUnicode_GET_LENGTH(topic) != 0 && PyUnicode_READ_CHAR(topic, 0) == '/' &&
        decode_topic != nullptr) {
        PyObject* meant = PyObject_CallOneArg(decode_topic, topic);
        if (meant == nullptr) return nullptr;
        Py_XSETREF(topic, meant);
    }
    return Py_NewRef(topic);
}

void event_dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    Py_XDECREF(event_of(self).data);
    Py_XDECREF(event_of(self).topic);
    Py_XDECREF(event_of(self).properties);
    delete event_of(self).acks;
    type->tp_free(self);
    Py_DECREF(type);
}

// Event(topic, data, *, properties=None, time_ns=0, source=0, sequence=0, missed=0, late=0.0)
PyObject* event_new(PyTypeObject* type, PyObject* arguments, PyObject* named) {
    static const char* names[] = {"topic", "data", "properties", "time_ns", "source", "sequence", "missed", "late", nullptr};
    PyObject *topic = nullptr, *data = nullptr, *properties = nullptr;
    long long time_ns = 0;
    unsigned short source = 0;
    unsigned long long sequence = 0;
    unsigned int missed = 0;
    double late = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "US|$OLHKId:Event", const_cast<char**>(names), &topic, &data,
                                     &properties, &time_ns, &source, &sequence, &missed, &late)) {
        return nullptr;
    }
    if (properties != nullptr && properties != Py_None && !PyDict_Check(properties)) {
        PyErr_SetString(PyExc_TypeError, "properties are a dict");
        return nullptr;
    }
    PyObject* self = type->tp_alloc(type, 0);
    if (self == nullptr) return nullptr;
    EventObject& event = event_of(self);
    event.topic = Py_NewRef(topic);
    event.data = Py_NewRef(data);
    if (properties != nullptr && properties != Py_None) event.properties = Py_NewRef(properties);
    event.time_ns = time_ns;
    event.source = source;
    event.sequence = sequence;
    event.missed = missed;
    event.late = late;
    return self;
}

PyObject* get_data(PyObject* self, void*) { return Py_NewRef(event_of(self).data); }
PyObject* get_topic(PyObject* self, void*) { return topic_of(event_of(self).topic); }
PyObject* get_time(PyObject* self, void*) { return PyLong_FromLongLong(event_of(self).time_ns); }
PyObject* get_sequence(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(event_of(self).sequence); }
PyObject* get_source(PyObject* self, void*) { return PyLong_FromLong(event_of(self).source); }
PyObject* get_missed(PyObject* self, void*) { return PyLong_FromUnsignedLong(event_of(self).missed); }
PyObject* get_attempt(PyObject* self, void*) { return PyLong_FromLong(event_of(self).attempt); }
PyObject* get_late(PyObject* self, void*) { return PyFloat_FromDouble(event_of(self).late); }

PyObject* get_properties(PyObject* self, void*) {
    EventObject& event = event_of(self);
    if (event.properties == nullptr || PyBytes_CheckExact(event.properties)) {
        Reference decoded = properties_of(event.properties);
        if (!decoded) return nullptr;
        Py_XSETREF(event.properties, decoded.release());
    }
    return Py_NewRef(event.properties);
}

PyObject* settle(PyObject* self, AckRange::Verdict verdict) {
    EventObject& event = event_of(self);
    if (event.ack.broker == 0) {
        return raise("ConfigError",
                     "this event is not acknowledged by the program: subscribe with durable= or group=, and ack=\"manual\"",
                     facts("{ss}", "setting", "ack"));
    }
    if (event.acks == nullptr) Py_RETURN_NONE;  // it was, before
    if ((*event.acks)->forked()) return raise_forked();
    (*event.acks)->add(event.ack, verdict);
    (*event.acks)->send();
    delete std::exchange(event.acks, nullptr);
    Py_RETURN_NONE;
}

PyObject* event_ack(PyObject* self, PyObject*) { return settle(self, AckRange::done); }
PyObject* event_nack(PyObject* self, PyObject*) { return settle(self, AckRange::again); }

PyObject* event_decode(PyObject* self, PyObject* type) {
    if (!decode_message) {
        PyErr_SetString(PyExc_RuntimeError, "antiphon.topics is not imported");
        return nullptr;
    }
    PyObject* parts[] = {nullptr, type, event_of(self).data};
    return PyObject_Vectorcall(decode_message, parts + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

PyObject* event_repr(PyObject* self) {
    EventObject& event = event_of(self);
    const Reference topic = Reference::steal(topic_of(event.topic));
    if (!topic) return nullptr;
    return PyUnicode_FromFormat("<Event %R #%llu of node %d, %zd bytes>", topic.get(),
                                static_cast<unsigned long long>(event.sequence), static_cast<int>(event.source),
                                PyBytes_GET_SIZE(event.data));
}

PyMethodDef event_methods[] = {
    {"decode", event_decode, METH_O,
     "decode($self, type, /)\n--\n\nThe data as a message of this class. Never blocks. Raises ProtocolError when it is "
     "none."},
    {"ack", event_ack, METH_NOARGS,
     "ack($self, /)\n--\n\nOf a subscription with ack=\"manual\": it is done with. Never blocks; a second word does "
     "nothing. Raises ConfigError elsewhere."},
    {"nack", event_nack, METH_NOARGS,
     "nack($self, /)\n--\n\nOf a subscription with ack=\"manual\": it is to be handed out again. Never blocks; a second "
     "word does nothing. Raises ConfigError elsewhere."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef event_attributes[] = {
    {"data", get_data, nullptr, "The payload, bytes.", nullptr},
    {"topic", get_topic, nullptr, "The topic it was published on: its name, its number or its tag.", nullptr},
    {"properties", get_properties, nullptr, "What the publisher said of it: str to str, int, float or bool.", nullptr},
    {"time_ns", get_time, nullptr, "When it was published: nanoseconds since 1970, by the publisher's clock.", nullptr},
    {"source", get_source, nullptr, "The id of the node that published it.", nullptr},
    {"sequence", get_sequence, nullptr, "The publisher's count of its events on this topic, from 1; of a recorded topic its place in the log.", nullptr},
    {"missed", get_missed, nullptr, "How many events for this subscription were lost just before it.", nullptr},
    {"attempt", get_attempt, nullptr,
     "For the how manieth time it is handed out, from 1; 0 where nobody asks for an acknowledgement.", nullptr},
    {"late", get_late, nullptr, "Seconds by which it came late; set by timers and time services.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

const char event_doc[] =
    "Something that was published on a topic, as a subscription gets it.\n\n"
    "Properties are decoded when they are first looked at. Never blocks.";

void batch_clear(PyObject* self) {
    EventBatchObject& batch = batch_of(self);
    Py_CLEAR(batch.topic);
    Py_CLEAR(batch.sequences);
    Py_CLEAR(batch.times_ns);
    Py_CLEAR(batch.sources);
    Py_CLEAR(batch.properties);
}

void event_batch_dealloc(PyObject* self) {
    batch_clear(self);
    dealloc_batch(self);
}

PyObject* batch_topic(PyObject* self, void*) { return topic_of(batch_of(self).topic); }
PyObject* batch_sequences(PyObject* self, void*) { return PyMemoryView_FromObject(batch_of(self).sequences); }
PyObject* batch_times(PyObject* self, void*) { return PyMemoryView_FromObject(batch_of(self).times_ns); }
PyObject* batch_sources(PyObject* self, void*) { return PyMemoryView_FromObject(batch_of(self).sources); }
PyObject* batch_attempt(PyObject* self, void*) { return PyLong_FromLong(batch_of(self).attempt); }
PyObject* batch_missed(PyObject* self, void*) { return PyLong_FromUnsignedLong(batch_of(self).missed); }

PyObject* batch_properties(PyObject* self, void*) {
    EventBatchObject& batch = batch_of(self);
    if (!batch.decoded) {
        const Py_ssize_t count = PySequence_Size(self);
        Reference list = Reference::steal(PyList_New(count));
        Reference said = Reference::share(batch.properties);  // another thread may be decoding them too
        if (!list) return nullptr;
        for (Py_ssize_t i = 0; i < count; ++i) {
            PyObject* bytes = said ? PyList_GET_ITEM(said.get(), i) : nullptr;
            Reference one = properties_of(bytes == Py_None ? nullptr : bytes);
            if (!one) return nullptr;
            PyList_SET_ITEM(list.get(), i, one.release());
        }
        Py_XSETREF(batch.properties, list.release());
        batch.decoded = true;
    }
    return Py_NewRef(batch.properties);
}

PyGetSetDef batch_attributes[] = {
    {"topic", batch_topic, nullptr, "The topic: a batch has one.", nullptr},
    {"sequences", batch_sequences, nullptr, "The publisher's count of each event, as a view of uint64.", nullptr},
    {"times_ns", batch_times, nullptr, "When each was published, as a view of int64.", nullptr},
    {"sources", batch_sources, nullptr, "The node that published each, as a view of uint16.", nullptr},
    {"properties", batch_properties, nullptr, "A list with the properties of each.", nullptr},
    {"attempt", batch_attempt, nullptr, "As an event's; of several the highest.", nullptr},
    {"missed", batch_missed, nullptr, "How many events for this subscription were lost just before the batch.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

const char event_batch_doc[] = "A Batch of events of one topic, with what is known of each. Never blocks.";

}  // namespace

void set_event_hooks(Reference properties, Reference message, Reference topic) {
    Py_XSETREF(decode_properties, properties.release());
    Py_XSETREF(decode_message, message.release());
    Py_XSETREF(decode_topic, topic.release());
}

bool add_event_types(PyObject* module) {
    PyType_Slot event_slots[] = {
        {Py_tp_dealloc, reinterpret_cast<void*>(event_dealloc)},
        {Py_tp_new, reinterpret_cast<void*>(event_new)},
        {Py_tp_methods, event_methods},
        {Py_tp_getset, event_attributes},
        {Py_tp_repr, reinterpret_cast<void*>(event_repr)},
        {Py_tp_doc, const_cast<char*>(event_doc)},
        {0, nullptr},
    };
    PyType_Spec event_spec{"antiphon._core.Event", sizeof(EventObject), 0, Py_TPFLAGS_DEFAULT, event_slots};
    event_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&event_spec));
    PyType_Slot batch_slots[] = {
        {Py_tp_dealloc, reinterpret_cast<void*>(event_batch_dealloc)},
        {Py_tp_getset, batch_attributes},
        {Py_tp_doc, const_cast<char*>(event_batch_doc)},
        {0, nullptr},
    };
    PyType_Spec batch_spec{"antiphon._core.EventBatch", sizeof(EventBatchObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, batch_slots};
    event_batch_type = reinterpret_cast<PyTypeObject*>(
        PyType_FromSpecWithBases(&batch_spec, reinterpret_cast<PyObject*>(batch_base())));
    // Nobody else is to derive from it: what it holds is set by the functions here.
    batch_base()->tp_flags &= ~Py_TPFLAGS_BASETYPE;
    return event_type && event_batch_type &&
           PyModule_AddObjectRef(module, "Event", reinterpret_cast<PyObject*>(event_type)) == 0 &&
           PyModule_AddObjectRef(module, "EventBatch", reinterpret_cast<PyObject*>(event_batch_type)) == 0;
}

PyObject* make_event(const EventView& view, PyObject* topic, std::uint16_t source, std::uint32_t missed,
                     std::uint8_t attempt, const std::shared_ptr<Acks>& acks, const AckOf& ack) {
    PyObject* self = event_type->tp_alloc(event_type, 0);
    if (self == nullptr) return nullptr;
    EventObject& event = event_of(self);
    event.data = PyBytes_FromStringAndSize(view.data, static_cast<Py_ssize_t>(view.size));
    event.topic = Py_NewRef(topic);
    if (view.head.properties != 0) {
        event.properties = PyBytes_FromStringAndSize(view.properties, view.head.properties);
    }
    event.time_ns = view.head.time_ns;
    event.sequence = view.head.sequence;
    event.missed = missed;
    event.source = source;
    event.attempt = attempt;
    if (acks && ack.broker != 0) {
        event.ack = ack;
        event.acks = new std::shared_ptr<Acks>(acks);
    }
    if (event.data != nullptr && (view.head.properties == 0 || event.properties != nullptr)) return self;
    Py_DECREF(self);
    return nullptr;
}

PyObject* make_timer_event(std::int64_t time_ns, std::uint64_t number, std::uint32_t missed, double late) {
    PyObject* self = event_type->tp_alloc(event_type, 0);
    if (self == nullptr) return nullptr;
    EventObject& event = event_of(self);
    event.data = PyBytes_FromStringAndSize(nullptr, 0);
    event.topic = PyUnicode_FromStringAndSize(nullptr, 0);
    event.time_ns = time_ns;
    event.sequence = number;
    event.missed = missed;
    event.late = late;
    if (event.data != nullptr && event.topic != nullptr) return self;
    Py_DECREF(self);
    return nullptr;
}

PyObject* make_event_batch(const std::vector<EventView>& views, const std::vector<std::uint16_t>& from, PyObject* topic,
                           std::uint32_t missed, std::uint8_t attempt) {
    const std::size_t count = views.size();
    std::size_t total = 0;
    bool any = false;
    for (const EventView& view : views) {
        total += view.size;
        any |= view.head.properties != 0;
    }
    Reference self = Reference::steal(event_batch_type->tp_alloc(event_batch_type, 0));
    if (!self) return nullptr;
    EventBatchObject& batch = batch_of(self.get());
    char *data, *offsets, *sequences, *times, *sources;
    batch.base.data = new_memory(total, total, nullptr, data);
    batch.base.offsets = new_memory(4 * (count + 1), count + 1, "i", offsets);
    batch.sequences = new_memory(8 * count, count, "Q", sequences);
    batch.times_ns = new_memory(8 * count, count, "q", times);
    batch.sources = new_memory(2 * count, count, "H", sources);
    batch.topic = Py_NewRef(topic);
    batch.missed = missed;
    batch.attempt = attempt;
    if (any) batch.properties = PyList_New(static_cast<Py_ssize_t>(count));
    if (!batch.base.data || !batch.base.offsets || !batch.sequences || !batch.times_ns || !batch.sources ||
        (any && !batch.properties)) {
        return nullptr;
    }
    std::int32_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const EventView& view = views[i];
        std::memcpy(offsets + 4 * i, &at, 4);
        std::memcpy(sequences + 8 * i, &view.head.sequence, 8);
        std::memcpy(times + 8 * i, &view.head.time_ns, 8);
        std::memcpy(sources + 2 * i, &from[i], 2);
        if (view.size != 0) std::memcpy(data + at, view.data, view.size);
        at += static_cast<std::int32_t>(view.size);
        if (!any) continue;
        PyObject* bytes = view.head.properties != 0
                              ? PyBytes_FromStringAndSize(view.properties, view.head.properties)
                              : Py_NewRef(Py_None);
        if (bytes == nullptr) return nullptr;
        PyList_SET_ITEM(batch.properties, static_cast<Py_ssize_t>(i), bytes);
    }
    std::memcpy(offsets + 4 * count, &at, 4);
    return self.release();
}

}  // namespace antiphon::python
