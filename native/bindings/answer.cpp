#include "bindings/answer.hpp"

#include <algorithm>

namespace antiphon::python {

namespace {

// Of an exception's text: enough to know what happened, and never more than a control frame.
constexpr std::size_t kMostText = 2048;

}  // namespace

std::string describe(PyObject* exception) {
    std::string told = Py_TYPE(exception)->tp_name;
    if (const auto dot = told.rfind('.'); dot != std::string::npos) told.erase(0, dot + 1);
    told.push_back('\0');
    Reference text = Reference::steal(PyObject_Str(exception));
    Py_ssize_t size = 0;
    const char* utf8 = text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
    if (utf8 != nullptr) told.append(utf8, std::min<std::size_t>(static_cast<std::size_t>(size), kMostText));
    PyErr_Clear();  // an exception whose text fails has none
    return told;
}

Answer::Answer(Node& node, const Run& run, std::uint16_t kind, std::uint64_t id, Reference result, std::string told,
               PyObject* kind_of, PyObject* encode)
    : node_(node),
      peer_(node.find_peer(run.source)),
      session_(run.session),
      kind_(kind),
      head_{id, ResponseHead::Status::answer, 0, ResponseHead::kBytes},
      told_(std::move(told)) {
    ResponseHead& head = head_;
    Reference& encoded = encoded_;
    Message& body = body_;
    std::string& text = told_;
    if (result && result.get() == Py_None) {
        head.kind = ResponseHead::kNone;
    } else if (result && PyBytes_Check(result.get())) {
        encoded = std::move(result);
    } else if (result) {
        Reference number = Reference::steal(
            PyObject_CallOneArg(kind_of, reinterpret_cast<PyObject*>(Py_TYPE(result.get()))));
        if (number) encoded = Reference::steal(PyObject_CallOneArg(encode, result.get()));
        if (encoded) {
            head.kind = static_cast<std::uint16_t>(PyLong_AsLong(number.get()));
        } else if (!number) {
            PyErr_Clear();
            text = std::string("TypeError") + '\0' + "the handler returned a " + Py_TYPE(result.get())->tp_name +
                   "; an answer is a Message, bytes or None";
        } else {
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            PyErr_NormalizeException(&type, &value, &trace);
            if (value) text = describe(value);
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
        }
    }
    if (encoded) {
        body = {PyBytes_AS_STRING(encoded.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(encoded.get()))};
    } else if (head.kind != ResponseHead::kNone) {
        head.status = ResponseHead::Status::error;
        body = {text.data(), text.size()};
    }
    if (peer_ != nullptr && body.size > node.message_limit(*peer_)) {
        head.status = ResponseHead::Status::error;
        head.kind = ResponseHead::kBytes;
        text = std::string("MessageTooLarge") + '\0' + node.too_large(*peer_, body.size).text;
        body = {text.data(), text.size()};
    }
}

bool Answer::try_send(bool urgent) {
    if (peer_ == nullptr) return true;
    const Attempt attempt = node_.try_answer(*peer_, session_, kind_, head_, body_, urgent);
    return attempt.status == Attempt::Status::sent || attempt.status == Attempt::Status::closed;
}

void Answer::send() {
    if (peer_ == nullptr) return;
    Released released;
    Node::Sending sending{*peer_, now_ns() + node_.options().request_timeout, now_ns()};
    node_.send_answer(sending, session_, kind_, head_, body_);
}

}  // namespace antiphon::python
