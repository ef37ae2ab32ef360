// Many messages in one buffer, and where each begins: what send_packed and publish_packed take.
#pragma once

#include <cstdint>
#include <vector>

#include "bindings/python.hpp"

namespace antiphon::python {

// A view of any object with a buffer, given back at the end of its scope.
class View {
   public:
    ~View() {
        if (held_) PyBuffer_Release(&buffer_);
    }
    bool take(PyObject* object, int flags) {
        held_ = PyObject_GetBuffer(object, &buffer_, flags) == 0;
        return held_;
    }
    const Py_buffer& operator*() const { return buffer_; }
    const Py_buffer* operator->() const { return &buffer_; }

   private:
    Py_buffer buffer_{};
    bool held_ = false;
};

class Packed {
   public:
    // Any buffer, and a buffer of native int32 or int64: one entry more than there are messages. False
    // with an exception set.
    bool take(PyObject* data, PyObject* offsets);
    std::size_t count() const { return count_; }
    std::uint64_t longest() const { return longest_; }
    // Up to `most` messages from `from` on. False with an exception: they have changed since they were
    // checked, while other threads ran.
    bool read(std::size_t from, std::size_t most, std::vector<Message>& spans) const;

   private:
    std::int64_t offset(std::size_t at) const;

    View data_, offsets_;
    std::size_t count_ = 0, width_ = 0;
    std::uint64_t longest_ = 0;
};

}  // namespace antiphon::python
