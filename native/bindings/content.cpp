#include "bindings/content.hpp"

#include "bindings/publisher.hpp"

namespace antiphon::python {

namespace {

std::string_view text(const Message& message) { return {message.data, message.size}; }

// False with an exception set.
bool read_verdict(PyObject* item, Verdict& verdict) {
    Reference numbers = Reference::steal(PySequence_Fast(item, "a verdict is a list of numbers"));
    if (!numbers) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(numbers.get()); ++i) {
        const unsigned long long number = PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(numbers.get(), i));
        if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred()) return false;
        verdict.push_back(number);
    }
    std::sort(verdict.begin(), verdict.end());
    return true;
}

}  // namespace

std::vector<bool> judge_bodies(PyObject* judge, const std::vector<Message>& bodies) {
    std::vector<bool> passes(bodies.size(), false);
    const Reference asked = Reference::steal(PyList_New(0));
    for (std::size_t i = 0; asked && i < bodies.size(); ++i) {
        const Message& data = bodies[i];
        const Reference body = data.size > kMostJudged
                                   ? Reference::share(Py_None)
                                   : Reference::steal(PyBytes_FromStringAndSize(data.data, static_cast<Py_ssize_t>(data.size)));
        if (!body || PyList_Append(asked.get(), body.get()) != 0) break;
    }
    const Reference answer = PyErr_Occurred() ? Reference() : call_one(judge, asked.get());
    if (!answer || !PyList_Check(answer.get()) || PyList_GET_SIZE(answer.get()) != static_cast<Py_ssize_t>(bodies.size())) {
        PyErr_WriteUnraisable(judge);
        return passes;
    }
    for (std::size_t i = 0; i < bodies.size(); ++i) {
        passes[i] = PyObject_IsTrue(PyList_GET_ITEM(answer.get(), static_cast<Py_ssize_t>(i))) == 1;
    }
    return passes;
}

// A reference of the caller's own: while it runs, another thread may find that a new one is needed.
Reference Content::plan(const Targets& targets) {
    const std::uint64_t version = targets.contents_version();
    if (plan_ && version_ == version) return Reference::share(plan_.get());
    const std::vector<std::uint64_t> numbers = targets.content_numbers();
    Reference asked = Reference::steal(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
    if (!asked) return {};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        PyObject* number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number == nullptr) return {};
        PyTuple_SET_ITEM(asked.get(), static_cast<Py_ssize_t>(i), number);
    }
    const Reference before = Reference::share(plan_ ? plan_.get() : Py_None);
    PyObject* arguments[] = {nullptr, asked.get(), before.get()};
    Reference made = Reference::steal(call_python(planner_.get(), arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET));
    if (!made) return {};
    plan_ = Reference::share(made.get());
    version_ = version;
    return made;
}

bool Content::judge(Targets& targets, const std::vector<Body>& bodies, std::vector<Verdict>& verdicts) {
    verdicts.assign(bodies.size(), {});
    if (!planner_) return true;
    Reference asked = Reference::steal(PyList_New(0));
    if (!asked) return false;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
        const Message& data = bodies[i].data;
        if (!targets.asks_content(text(bodies[i].properties))) continue;
        Reference body = data.size > kMostJudged
                             ? Reference::share(Py_None)
                             : Reference::steal(PyBytes_FromStringAndSize(data.data, static_cast<Py_ssize_t>(data.size)));
        if (!body || PyList_Append(asked.get(), body.get()) != 0) return false;
        places.push_back(i);
    }
    if (places.empty()) return true;
    const Reference judges = plan(targets);
    if (!judges) return false;
    const Reference answer = call_one(judges.get(), asked.get());
    if (!answer) return false;
    Reference items = Reference::steal(PySequence_Fast(answer.get(), "verdicts are a list"));
    if (!items) return false;
    const std::size_t count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.get()));
    for (std::size_t i = 0; i < std::min(count, places.size()); ++i) {
        if (!read_verdict(PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i)), verdicts[places[i]])) {
            verdicts.assign(bodies.size(), {});
            return false;
        }
    }
    return true;
}

bool Publisher::send_judged(const std::vector<Message>& spans, Nanos expires, std::size_t before, Call call) {
    std::vector<Body> bodies;
    std::vector<Verdict> verdicts;
    for (std::size_t first = 0; first < spans.size(); first += bodies.size()) {
        bodies.clear();
        std::size_t bytes = 0;
        while (first + bodies.size() < spans.size() && bodies.size() < kJudgedAtOnce && bytes < kMostJudged) {
            bodies.push_back({{nullptr, 0}, spans[first + bodies.size()]});
            bytes += bodies.back().data.size;
        }
        if (!content_.judge(targets_, bodies, verdicts) || !open()) return false;
        // Those that follow each other to the same ones go together.
        for (std::size_t i = 0, count = 1; i < bodies.size(); i += count) {
            for (count = 1; i + count < bodies.size() && verdicts[i + count] == verdicts[i];) ++count;
            const Chosen chosen = wanted({nullptr, 0}, verdicts[i]);
            if (!send_some(chosen, &spans[first + i], count, expires, before + first + i, call)) return false;
        }
    }
    return true;
}

bool Publisher::judge_retained(Nanos deadline, Verdict& verdict, std::uint64_t& sequence) {
    std::string properties, data;
    {
        Released released;
        Outcome outcome;
        if (!take(deadline, nullptr, outcome)) return false;
        const Passed passed{*this};
        if (!retained_) return false;
        properties = retained_->properties;
        data = retained_->data;
        sequence = retained_->head.sequence;
    }
    std::vector<Verdict> verdicts;
    const Body body{{properties.data(), properties.size()}, {data.data(), data.size()}};
    if (!content_.judge(targets_, {body}, verdicts)) PyErr_WriteUnraisable(nullptr);
    verdict = verdicts[0];
    return true;
}

}  // namespace antiphon::python
