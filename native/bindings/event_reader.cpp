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
        if (known_.size() >= sweep_at_) sweep();
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
    // Another store has other sequences: what was handed out of the one before says nothing about them.
    if (entry.last != nullptr && entry.last->store != bound->store) *entry.last = {0, bound->store};
    entry.bound = std::move(bound);
    entry.version = version;
    entry.session = session;
    return &entry;
}

// Those whose publisher has ended.
void EventReader::sweep() {
    std::erase_if(known_, [&](const auto& entry) { return !registration_.topics->knows(entry.first); });
    std::erase_if(handler_.topics, [&](const auto& entry) { return !known_.contains(entry.first); });
    sweep_at_ = std::max(kMany, 2 * known_.size());
}

std::unordered_map<std::string, EventReader::Place> EventReader::positions() const {
    std::unordered_map<std::string, Place> all;
    for (auto& [name, first, store] : registration_.topics->begun()) all.emplace(std::move(name), Place{first, store});
    for (const auto& [name, last] : positions_) {
        const auto begun = all.find(name);
        // A broker with another store may have said where it begins, and sent nothing yet.
        const bool older = begun != all.end() && begun->second.store != last.store;
        if (last.sequence != 0 && !older) all[name] = {last.sequence + 1, last.store};
    }
    return all;
}

EventReader::Told EventReader::told(Topic& topic, EventView& view, std::uint16_t from, Nanos waited) {
    if (!topic.bound->recorded) {
        return {topic.source(from), 0, view.head.expired(waited) ? Told::expired : Told::fresh};
    }
    const LogMark mark = LogMark::of(view.head);
    if (topic.last == nullptr || mark.attempt != 0) return {mark.source, mark.attempt, Told::fresh};
    if (view.head.sequence <= topic.last->sequence) return {mark.source, 0, Told::repeated};
    topic.last->sequence = view.head.sequence;
    return {mark.source, 0, Told::fresh};
}

std::uint32_t EventReader::missed(Topic& topic, std::uint32_t number) {
    const std::uint32_t gap = number - topic.bound->next;
    topic.bound->next = number + 1;
    return gap < UINT32_MAX / 2 ? gap : 0;
}

}  // namespace antiphon::python
