#include "bindings/answer.hpp"

#include <string_view>

namespace antiphon::python {

namespace {

// Of an exception's text: enough to know what happened, and never more than a control frame.
constexpr std::size_t kMostText = 2048;

// The most of it that ends between two characters.
std::string_view beginning(std::string_view utf8) {
    if (utf8.size() <= kMostText) return utf8;
    std::size_t end = kMostText;
    while (end > 0 && (static_cast<unsigned char>(utf8[end]) & 0xC0) == 0x80) --end;
    return utf8.substr(0, end);
}

}  // namespace

std::string describe(PyObject* exception) {
    std::string told = Py_TYPE(exception)->tp_name;
    if (const auto dot = told.rfind('.'); dot != std::string::npos) told.erase(0, dot + 1);
    told.push_back('\0');
    Reference text = call_one(reinterpret_cast<PyObject*>(&PyUnicode_Type), exception);
    // The name of a file may hold bytes that are no text: they are told as \udcff.
    Reference utf8 = Reference::steal(text ? PyUnicode_AsEncodedString(text.get(), "utf-8", "backslashreplace") : nullptr);
    if (utf8) {
        told += beginning({PyBytes_AS_STRING(utf8.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(utf8.get()))});
    }
    PyErr_Clear();  // an exception whose text fails has none
    return told;
}

Answer::Answer(Node& node, const Run& run, std::uint16_t kind, std::uint64_t id)
    : node_(node),
      peer_(node.find_peer(run.source)),
      session_(run.session),
      kind_(kind),
      head_{id, ResponseHead::Status::answer, 0, ResponseHead::kBytes} {}

bool Answer::encode(Reference result, PyObject* kind_of, PyObject* encode) {
    if (result.get() == Py_None) {
        head_.kind = ResponseHead::kNone;
        return true;
    }
    if (PyBytes_Check(result.get())) {
        encoded_ = std::move(result);
    } else {
        Reference type = Reference::share(reinterpret_cast<PyObject*>(Py_TYPE(result.get())));
        Reference number = call_one(kind_of, type.get());
        if (!number) {
            PyErr_Format(PyExc_TypeError, "the handler returned a %s; an answer is a Message, bytes or None",
                         Py_TYPE(result.get())->tp_name);
            return false;
        }
        encoded_ = call_one(encode, result.get());
        if (!encoded_) return false;
        head_.kind = static_cast<std::uint16_t>(PyLong_AsLong(number.get()));
    }
    body_ = {PyBytes_AS_STRING(encoded_.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(encoded_.get()))};
    if (peer_ != nullptr && body_.size > node_.message_limit(*peer_)) {
        raise_outcome(node_.too_large(*peer_, body_.size), peer_->id, kind_, 0, 0);
        return false;
    }
    return true;
}

void Answer::fail(std::string told) {
    told_ = std::move(told);
    body_ = {told_.data(), told_.size()};
    head_.status = ResponseHead::Status::error;
    head_.kind = ResponseHead::kBytes;
}

bool Answer::try_send(bool urgent) {
    if (peer_ == nullptr) return true;
    const Attempt attempt = node_.try_answer(*peer_, session_, kind_, head_, body_, urgent);
    if (attempt.status == Attempt::Status::closed) node_.lost_answer();  // who asked has gone, or we do
    return attempt.status == Attempt::Status::sent || attempt.status == Attempt::Status::closed;
}

void Answer::send() {
    if (peer_ == nullptr) return;
    Released released;
    Node::Sending sending{*peer_, now_ns() + node_.options().request_timeout, now_ns()};
    node_.send_answer(sending, session_, kind_, head_, body_);
}

Waits::Next Answer::attempt(Bell& bell, Nanos& until) {
    if (peer_ == nullptr) return Waits::Next::went;
    if (!waits_) waits_.emplace(*peer_, now_ns() + node_.options().request_timeout);
    const Waits::Next next = waits_->attempt(
        node_, bell, [&] { return node_.try_answer(*peer_, session_, kind_, head_, body_, true); });
    if (next == Waits::Next::failed) node_.lost_answer();
    until = waits_->until();
    return next;
}

}  // namespace antiphon::python
