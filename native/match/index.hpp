// Very many filters at once: which of them let an event pass.
//
// A filter's conditions that are joined by AND are looked up, as far as they can be: all of
// `property = value` (and IN) together in one hash table, a range of one property in ordered lists, ranges of
// several in trees of boxes. The other conditions are evaluated, and only for filters that got so far. Every
// answer is the naive evaluator's.
//
// For one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "match/boxes.hpp"
#include "match/filter.hpp"
#include "match/ranges.hpp"

namespace antiphon::match {

class FilterIndex {
   public:
    FilterIndex();
    ~FilterIndex();
    FilterIndex(const FilterIndex&) = delete;
    FilterIndex& operator=(const FilterIndex&) = delete;

    // False: there is one of that id.
    bool add(std::uint64_t id, std::shared_ptr<const Filter> filter);
    // False: there is none.
    bool remove(std::uint64_t id);
    // Appends the ids of those that match, in no order.
    void match(const Properties& properties, std::vector<std::uint64_t>& ids);
    std::size_t size() const { return slots_.size(); }

   private:
    struct Bundle;
    struct Group;
    struct Shape;
    struct Plan;
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    };
    template <typename T>
    using ByText = std::unordered_map<std::string, T, Hash, std::equal_to<>>;

    // A name that filters have, and what the event that is looked at says of it.
    struct Attribute {
        std::string name;
        std::uint32_t uses = 0;
        std::uint32_t event = 0;  // which has it
        Value value;
        std::unique_ptr<Shape> alone;  // filters that are looked up by this property only
    };
    // What a filter is found by.
    struct Range {
        std::uint32_t attribute;
        Interval interval;
    };
    struct Member {
        std::uint64_t id;
        std::shared_ptr<const Filter> filter;
        std::uint64_t rest;  // conditions that the look-up says nothing of
        Shape* shape;
        std::vector<Group*> groups;  // one for each combination of the values that it may have
        std::vector<Range> ranges;
    };
    std::uint32_t attribute(std::string_view name);
    void release(std::uint32_t attribute);
    Plan plan(const Filter& filter);
    Shape& choose_shape(Plan& plan);
    static std::vector<std::string> keys(const Plan& plan, const Shape& shape);
    void place(std::uint32_t slot, Group& group);
    void displace(std::uint32_t slot, Group& group);
    void drop_shape(Shape& shape);

    void note(const Properties& properties);
    void look_in(const Shape& shape);
    void look_in(const Group& group);
    void look_in(const Bundle& bundle);
    void candidate(std::uint32_t slot);

    std::vector<Attribute> attributes_;
    std::vector<std::uint32_t> free_attributes_;
    ByText<std::uint32_t> names_;
    std::unique_ptr<Shape> everywhere_;  // filters without `property = value`
    std::vector<std::unique_ptr<Shape>> together_;  // filters that are looked up by several properties
    std::vector<Member> members_;
    std::vector<std::uint32_t> free_members_;
    std::unordered_map<std::uint64_t, std::uint32_t> slots_;

    // Of the event that is looked at:
    std::uint32_t event_ = 0;
    const Properties* properties_ = nullptr;
    std::vector<std::uint64_t>* found_ = nullptr;
    std::vector<std::uint32_t> present_;
    std::string key_;
};

}  // namespace antiphon::match
