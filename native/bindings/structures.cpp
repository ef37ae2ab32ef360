#include "bindings/structures.hpp"

#include <nanobind/stl/string.h>

#include <optional>

#include "frames/data_parser.hpp"
#include "frames/handshake.hpp"
#include "frames/sha256.hpp"
#include "ring/ring.hpp"
#include "scheduler/run.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace antiphon::python {

namespace {

nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }
std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// A ring that is driven one step at a time.
class RingProbe {
   public:
    explicit RingProbe(std::size_t capacity) : ring_(capacity) {}
    nb::object claim(std::size_t bytes) {
        std::uint64_t position;
        if (!ring_.claim(bytes, position)) return nb::none();
        return nb::int_(position);
    }
    void commit(std::uint64_t position, const nb::bytes& data) {
        ring_.write(position, data.c_str(), data.size());
        if (ring_.committed() != position) throw nb::value_error("an earlier claim is still open");
        ring_.publish(position + data.size());
    }
    nb::bytes read(std::size_t most) {
        const char* data;
        const std::size_t bytes = std::min(most, ring_.readable(data));
        nb::bytes out(data, bytes);
        ring_.release(bytes);
        return out;
    }
    std::size_t free_bytes() const { return ring_.free_bytes(); }

   private:
    Ring ring_;
};

// Records what the parser finds.
class Recorder : public DataSink {
   public:
    explicit Recorder(std::uint32_t least) : least_(least) {}
    std::uint32_t least_charge(std::uint16_t, std::uint32_t) override { return least_; }
    void run(const RunView& view) override {
        Run run;
        run.shape = view.first.flags & kPacked ? Run::Shape::packed : Run::Shape::frames;
        run.buffer = view.buffer;
        run.offset = view.offset;
        run.bytes = view.bytes;
        run.count = run.last = view.count;
        charge += view.charge;
        RunCursor cursor(run);
        while (cursor.left() != 0) {
            const char* data;
            std::size_t size;
            cursor.next(data, size);
            add("data", view.first, {data, size});
        }
    }
    bool fragment(const Header& header, std::uint64_t id, std::string_view part) override {
        (void)id;
        add("fragment", header, part);
        return true;
    }
    bool response(const Header& header, std::string_view payload) override {
        add("response", header, payload);
        return true;
    }
    bool control(const Header& header, std::string_view payload) override {
        add("control", header, payload);
        return true;
    }
    nb::list found;
    std::uint64_t charge = 0;

   private:
    void add(const char* what, const Header& header, std::string_view bytes) {
        found.append(nb::make_tuple(what, header.kind, header.flow, to_bytes(bytes)));
    }
    const std::uint32_t least_;
};

class ParserProbe {
   public:
    ParserProbe(std::size_t max_frame, std::uint32_t least)
        : pool_(std::make_shared<BufferPool>(
              std::vector<std::pair<std::size_t, std::size_t>>{{4096, 4}, {16384, 4}})),
          parser_(max_frame),
          recorder_(least) {}
    // True while the stream is well-formed.
    bool feed(const nb::bytes& bytes) {
        std::string_view rest = view(bytes);
        while (!rest.empty()) {
            char* at;
            std::size_t room;
            if (!parser_.prepare(*pool_, at, room)) throw nb::value_error("the pool is empty");
            const std::size_t part = std::min(room, rest.size());
            std::memcpy(at, rest.data(), part);
            rest.remove_prefix(part);
            if (!parser_.parse(part, recorder_)) return false;
        }
        parser_.rest();
        return true;
    }
    nb::list found() const { return recorder_.found; }
    std::uint64_t charge() const { return recorder_.charge; }
    std::string error() const { return parser_.error(); }
    bool mid_frame() const { return parser_.mid_frame(); }

   private:
    std::shared_ptr<BufferPool> pool_;
    DataParser parser_;
    Recorder recorder_;
};

nb::object decode_hello(const nb::bytes& bytes) {
    Hello hello;
    if (!Hello::decode(view(bytes), hello)) return nb::none();
    nb::dict d;
    d["version"] = nb::make_tuple(hello.version_min, hello.version_max);
    d["id"] = hello.id;
    d["incarnation"] = hello.incarnation;
    d["address"] = nb::steal(
        PyUnicode_DecodeUTF8(hello.address.data(), static_cast<Py_ssize_t>(hello.address.size()), "replace"));
    return d;
}

}  // namespace

void add_structures(nb::module_& m) {
    nb::class_<RingProbe>(m, "RingProbe")
        .def(nb::init<std::size_t>())
        .def("claim", &RingProbe::claim)
        .def("commit", &RingProbe::commit)
        .def("read", &RingProbe::read)
        .def_prop_ro("free_bytes", &RingProbe::free_bytes);
    nb::class_<ParserProbe>(m, "ParserProbe")
        .def(nb::init<std::size_t, std::uint32_t>(), "max_frame"_a, "least_charge"_a = 0)
        .def("feed", &ParserProbe::feed)
        .def_prop_ro("found", &ParserProbe::found)
        .def_prop_ro("charge", &ParserProbe::charge)
        .def_prop_ro("error", &ParserProbe::error)
        .def_prop_ro("mid_frame", &ParserProbe::mid_frame);
    m.def("hmac_sha256", [](const nb::bytes& key, const nb::bytes& data) {
        return to_bytes(hmac_sha256(view(key), view(data)));
    });
    m.def("decode_hello", &decode_hello);
}

}  // namespace antiphon::python
