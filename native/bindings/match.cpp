#include "bindings/match.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/python.hpp"
#include "match/filter.hpp"
#include "match/index.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace antiphon::python {

namespace {

using match::Filter, match::FilterIndex, match::Properties, match::Truth, match::Value;

// Exact types only: one look tells a bool from an int. What an event cannot carry is NULL.
Value to_value(PyObject* object) {
    if (PyBool_Check(object)) return Value::of(object == Py_True);
    if (PyFloat_CheckExact(object)) return Value::of(PyFloat_AS_DOUBLE(object));
    if (PyLong_CheckExact(object)) {
        int overflow = 0;
        const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
        return overflow != 0 ? Value{} : Value::of(static_cast<std::int64_t>(value));
    }
    if (!PyUnicode_CheckExact(object)) return {};
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text != nullptr) return Value::of(std::string_view(text, static_cast<std::size_t>(size)));
    PyErr_Clear();  // half of a surrogate pair
    return {};
}

nb::object from_truth(Truth truth) {
    return truth == Truth::unknown ? nb::object(nb::none()) : nb::object(nb::bool_(truth == Truth::yes));
}

Properties encoded(const nb::bytes& bytes) { return Properties({bytes.c_str(), bytes.size()}); }

// The values of the names that the filter has; the mapping need not be a dict.
nb::object evaluate(const Filter& filter, nb::handle properties) {
    Properties found;
    nb::list alive;
    for (const std::string_view name : filter.code().names) {
        const nb::str key(name.data(), name.size());
        if (PyMapping_HasKey(properties.ptr(), key.ptr()) == 0) continue;
        nb::object value = properties[key];
        found.add(name, to_value(value.ptr()));
        alive.append(value);
    }
    return from_truth(filter.evaluate(found));
}

nb::object read_filter(const std::string& text) {
    match::Mistake mistake;
    if (auto filter = Filter::read(text, mistake)) return nb::cast(std::const_pointer_cast<Filter>(filter));
    return nb::make_tuple(mistake.column, mistake.why, mistake.found, mistake.expected);
}

}  // namespace

void add_match(nb::module_& m) {
    nb::class_<Filter>(m, "Filter")
        .def("evaluate", &evaluate, "properties"_a)
        .def("evaluate_encoded", [](const Filter& self, const nb::bytes& properties) {
            return from_truth(self.evaluate(encoded(properties)));
        }, "properties"_a)
        .def("matches_encoded", [](const Filter& self, const nb::bytes& properties) {
            return self.matches(encoded(properties));
        }, "properties"_a);
    m.def("read_filter", &read_filter, "text"_a);
    m.attr("FILTER_CHARACTERS") = match::kMostCharacters;
    m.attr("FILTER_COMPARISONS") = match::kMostComparisons;
    m.attr("FILTER_PROPERTIES") = Properties::kMost;

    nb::class_<FilterIndex>(m, "FilterIndex")
        .def(nb::init<>())
        .def("add", [](FilterIndex& self, std::uint64_t id, std::shared_ptr<Filter> filter) {
            return self.add(id, std::move(filter));
        }, "id"_a, "filter"_a)
        .def("remove", &FilterIndex::remove, "id"_a)
        .def("match", [](FilterIndex& self, const nb::bytes& properties) {
            std::vector<std::uint64_t> ids;
            self.match(encoded(properties), ids);
            return ids;
        }, "properties"_a)
        .def("__len__", &FilterIndex::size);
}

}  // namespace antiphon::python
