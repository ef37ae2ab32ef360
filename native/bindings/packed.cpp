#include "bindings/packed.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace antiphon::python {

std::int64_t Packed::offset(std::size_t at) const {
    const char* from = static_cast<const char*>(offsets_->buf) + width_ * at;
    if (width_ == 4) {
        std::int32_t value;
        std::memcpy(&value, from, 4);
        return value;
    }
    std::int64_t value;
    std::memcpy(&value, from, 8);
    return value;
}

bool Packed::take(PyObject* data, PyObject* offsets) {
    static const char* const wanted =
        "offsets are a buffer of native int32 or int64, such as array('i') or an Arrow buffer viewed as integers";
    if (!PyObject_CheckBuffer(data)) {
        PyErr_Format(PyExc_TypeError, "data is bytes or another buffer, not %.100s", Py_TYPE(data)->tp_name);
        return false;
    }
    if (!PyObject_CheckBuffer(offsets)) {
        PyErr_Format(PyExc_TypeError, "%s, not %.100s", wanted, Py_TYPE(offsets)->tp_name);
        return false;
    }
    if (!data_.take(data, PyBUF_SIMPLE) || !offsets_.take(offsets, PyBUF_ND | PyBUF_FORMAT)) return false;
    width_ = static_cast<std::size_t>(offsets_->itemsize);
    // One letter, perhaps behind a mark of this machine's byte order.
    std::string_view format = offsets_->format ? offsets_->format : "B";
    if (format.size() == 2 && std::strchr("@=<", format[0])) format.remove_prefix(1);
    if ((width_ != 4 && width_ != 8) || (format != "i" && format != "l" && format != "q")) {
        PyErr_SetString(PyExc_TypeError, wanted);
        return false;
    }
    const std::size_t entries = static_cast<std::size_t>(offsets_->len) / width_;
    if (entries == 0) {
        PyErr_SetString(PyExc_ValueError, "offsets hold one entry more than there are messages, so at least one");
        return false;
    }
    count_ = entries - 1;
    std::int64_t last = offset(0), longest = 0;
    bool rising = last >= 0;
    for (std::size_t i = 1; i < entries; ++i) {
        const std::int64_t next = offset(i);
        rising &= next >= last;
        longest = std::max(longest, next - last);
        last = next;
    }
    longest_ = static_cast<std::uint64_t>(longest);
    if (rising && last <= data_->len) return true;
    PyErr_SetString(PyExc_ValueError, "offsets must rise from 0 on and end within the data");
    return false;
}

bool Packed::read(std::size_t from, std::size_t most, std::vector<Message>& spans) const {
    spans.clear();
    const auto* base = static_cast<const char*>(data_->buf);
    for (std::size_t at = from; at < count_ && spans.size() < most; ++at) {
        const std::int64_t begin = offset(at), end = offset(at + 1);
        if (begin < 0 || end < begin || end > data_->len) {
            PyErr_SetString(PyExc_ValueError, "offsets changed while they were being sent");
            return false;
        }
        spans.push_back({base + begin, static_cast<std::size_t>(end - begin)});
    }
    return true;
}

}  // namespace antiphon::python
