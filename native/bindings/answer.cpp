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

void respond(Node& node, const Run& run, std::uint16_t kind, std::uint64_t id, Reference result, std::string told,
             PyObject* kind_of, PyObject* encode, bool urgent) {
    ResponseHead head{id, ResponseHead::Status::answer, 0, ResponseHead::kBytes};
    Reference encoded;
    Message body{nullptr, 0};
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
            told = std::string("TypeError") + '\0' + "the handler returned a " + Py_TYPE(result.get())->tp_name +
                   "; an answer is a Message, bytes or None";
        } else {
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            PyErr_NormalizeException(&type, &value, &trace);
            if (value) told = describe(value);
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
        }
    }
    if (encoded) {
        body = {PyBytes_AS_STRING(encoded.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(encoded.get()))};
    } else if (head.kind != ResponseHead::kNone) {
        head.status = ResponseHead::Status::error;
        body = {told.data(), told.size()};
    }
    Peer* peer = node.find_peer(run.source);
    if (peer == nullptr) return;
    if (body.size > node.message_limit(*peer)) {
        head.status = ResponseHead::Status::error;
        head.kind = ResponseHead::kBytes;
        told = std::string("MessageTooLarge") + '\0' + node.too_large(*peer, body.size).text;
        body = {told.data(), told.size()};
    }
    const Attempt attempt = node.try_answer(*peer, run.session, kind, head, body, urgent);
    if (attempt.status == Attempt::Status::sent || attempt.status == Attempt::Status::closed) return;
    Released released;
    Node::Sending sending{*peer, now_ns() + node.options().request_timeout, now_ns()};
    node.send_answer(sending, run.session, kind, head, body);  // an answer that is lost is counted
}

}  // namespace antiphon::python
