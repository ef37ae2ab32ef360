#include "bindings/bench.hpp"

#include <nanobind/stl/string.h>

#include <span>

#include "bench/raw_datagrams.hpp"
#include "bench/raw_echo.hpp"
#include "bench/raw_log.hpp"
#include "bench/raw_stream.hpp"
#include "bindings/python.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace antiphon::python {

namespace {

nb::tuple stream_result(const bench::StreamResult& result) { return nb::make_tuple(result.bytes, result.seconds); }

}  // namespace

void add_bench(nb::module_& m) {
    m.def(
        "raw_stream_send",
        [](const std::string& host, std::uint16_t port, std::size_t size, double seconds) {
            bench::StreamResult result;
            {
                Released released;
                result = bench::raw_stream_send(host, port, size, seconds);
            }
            return stream_result(result);
        },
        "host"_a, "port"_a, "size"_a, "seconds"_a);
    m.def(
        "raw_stream_receive",
        [](int fd, double seconds_max) {
            bench::StreamResult result;
            {
                Released released;
                result = bench::raw_stream_receive(fd, seconds_max);
            }
            return stream_result(result);
        },
        "fd"_a, "seconds_max"_a);
    m.def(
        "raw_stream_write",
        [](int fd, const nb::bytes& data, std::uint64_t count) {
            const std::span<const char> view(data.c_str(), data.size());
            Released released;
            bench::raw_stream_write(fd, view, count);
        },
        "fd"_a, "data"_a, "count"_a);
    nb::class_<bench::StreamReader>(m, "StreamReader")
        .def(nb::init<std::size_t, std::uint8_t, std::uint8_t, std::size_t>(), "size"_a, "first"_a,
             "mark"_a, "head"_a)
        .def(
            "read",
            [](bench::StreamReader& reader, int fd) {
                Released released;
                reader.read(fd);
            },
            "fd"_a)
        .def("take", [](bench::StreamReader& reader) {
            bench::StreamCounts found;
            {
                Released released;
                found = reader.take();
            }
            return nb::make_tuple(found.messages, found.bytes, found.wrong, found.last_ns,
                                  found.dropped,
                                  nb::bytes(found.marked.data(), found.marked.size()));
        });
    m.def(
        "raw_echo_call",
        [](int fd, std::size_t size, double seconds) {
            std::vector<std::int64_t> times;
            {
                Released released;
                times = bench::raw_echo_call(fd, size, seconds);
            }
            return nb::bytes(times.data(), times.size() * sizeof(std::int64_t));
        },
        "fd"_a, "size"_a, "seconds"_a);
    m.def(
        "raw_echo_serve",
        [](int fd, std::size_t size, double seconds_max) {
            Released released;
            return bench::raw_echo_serve(fd, size, seconds_max);
        },
        "fd"_a, "size"_a, "seconds_max"_a);
    m.def(
        "raw_log_write",
        [](const std::string& path, std::size_t size, double seconds, double interval) {
            bench::LogResult result;
            {
                Released released;
                result = bench::raw_log_write(path, size, seconds, interval);
            }
            return nb::make_tuple(result.bytes, result.seconds);
        },
        "path"_a, "size"_a, "seconds"_a, "interval"_a);
    m.def(
        "raw_log_read",
        [](const std::string& path) {
            bench::LogResult result;
            {
                Released released;
                result = bench::raw_log_read(path);
            }
            return nb::make_tuple(result.bytes, result.seconds);
        },
        "path"_a);
    m.def(
        "raw_datagrams_send",
        [](int fd, const nb::bytes& data, std::uint64_t count) {
            const std::span<const char> view(data.c_str(), data.size());
            Released released;
            bench::raw_datagrams_send(fd, view, count);
        },
        "fd"_a, "data"_a, "count"_a);
    m.def(
        "raw_datagrams_receive",
        [](int fd, std::size_t size, double seconds, std::uint8_t mark, std::size_t head) {
            bench::Datagrams found;
            {
                Released released;
                found = bench::raw_datagrams_receive(fd, size, seconds, mark, head);
            }
            return nb::make_tuple(found.messages, found.bytes, found.wrong, found.last_ns,
                                  nb::bytes(found.marked.data(), found.marked.size()));
        },
        "fd"_a, "size"_a, "seconds"_a, "mark"_a, "head"_a);
}

}  // namespace antiphon::python
