#include "bindings/event_reader.hpp"

namespace antiphon::python {

// Kept by the handler, which is dropped with the interpreter's lock; this task may not be.
PyObject* EventReader::text(std::uint64_t key, const std::string& name) {
    Reference made = Reference::steal(PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace"));
    if (!made) {
        PyErr_Clear();
        return nullptr;
    }
    Reference& kept = handler_.topics[key];
    kept = std::move(made);
    return kept.get();
}

EventReader::Topic* EventReader::topic(std::uint16_t source, std::uint32_t topic, std::uint32_t session) {
    const std::uint64_t key = TopicNames::key(source, topic);
    const std::uint64_t version = registration_.topics->version();
    if (last_ == nullptr || last_key_ != key) {
        last_ = &known_.try_emplace(key, Topic{nullptr, nullptr, 0, 0, nullptr}).first->second;
        last_key_ = key;
    }
    Topic& entry = *last_;
    if (entry.bound && entry.version == version && entry.session == session) return &entry;
    auto bound = registration_.topics->find(source, topic, session);
    if (!bound) return nullptr;
    if (entry.name == nullptr || !entry.bound || bound->name != entry.bound->name) {
        entry.name = text(key, bound->name);
        if (entry.name == nullptr) return nullptr;
    }
    entry.last = bound->recorded ? &positions_[bound->name] : nullptr;
    entry.bound = std::move(bound);
    entry.version = version;
    entry.session = session;
    return &entry;
}

std::unordered_map<std::string, std::uint64_t> EventReader::positions() const {
    std::unordered_map<std::string, std::uint64_t> all;
    for (auto& [name, first] : registration_.topics->begun()) all.emplace(std::move(name), first);
    for (const auto& [name, last] : positions_) {
        if (last != 0) all[name] = last + 1;
    }
    return all;
}

EventReader::Told EventReader::told(Topic& topic, EventView& view, std::uint16_t from, Nanos waited) {
    if (!topic.bound->recorded) {
        return {topic.source(from), 0, view.head.expired(waited) ? Told::expired : Told::fresh};
    }
    const LogMark mark = LogMark::of(view.head);
    if (topic.last == nullptr || mark.attempt != 0) return {mark.source, mark.attempt, Told::fresh};
    if (view.head.sequence <= *topic.last) return {mark.source, 0, Told::repeated};
    *topic.last = view.head.sequence;
    return {mark.source, 0, Told::fresh};
}

std::uint32_t EventReader::missed(Topic& topic, std::uint32_t number) {
    const std::uint32_t gap = number - topic.bound->next;
    topic.bound->next = number + 1;
    return gap < UINT32_MAX / 2 ? gap : 0;
}

}  // namespace antiphon::python
