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

EventReader::Topic* EventReader::topic(std::uint16_t source, std::uint32_t topic) {
    const std::uint64_t key = TopicNames::key(source, topic);
    const std::uint64_t version = registration_.topics->version();
    if (version != version_) {
        version_ = version;
        last_ = nullptr;
        // Names of the same topic under another epoch: a new life of its publisher.
        for (auto& [known, entry] : known_) {
            auto now = registration_.topics->find(static_cast<std::uint16_t>(known >> 32), static_cast<std::uint32_t>(known));
            if (now == entry.bound || !now) continue;
            if (now->name != entry.bound->name) entry.name = nullptr;
            entry.bound = std::move(now);
        }
    }
    if (last_ != nullptr && last_key_ == key) return last_;
    auto found = known_.find(key);
    if (found == known_.end()) {
        auto bound = registration_.topics->find(source, topic);
        if (!bound) return nullptr;
        found = known_.emplace(key, Topic{std::move(bound), nullptr}).first;
    }
    Topic& entry = found->second;
    if (entry.name == nullptr) entry.name = text(key, entry.bound->name);
    if (entry.name == nullptr) return nullptr;
    last_key_ = key;
    last_ = &entry;
    return last_;
}

std::uint32_t EventReader::missed(Topic& topic, std::uint32_t number) {
    const std::uint32_t gap = number - topic.bound->next;
    topic.bound->next = number + 1;
    return gap < UINT32_MAX / 2 ? gap : 0;
}

}  // namespace antiphon::python
