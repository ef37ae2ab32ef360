#include "match/index.hpp"

#include <algorithm>

namespace antiphon::match {

namespace {

// Combinations of properties that have a table of their own; every event asks each. Filters that come later
// with another combination are looked up by the best of their properties.
constexpr std::size_t kMostCombinations = 64;
constexpr std::size_t kMostEqualities = 4, kMostRanges = Boxes::kMostSides;
// Places of one filter: the values of an IN, and what several of them multiply to.
constexpr std::size_t kMostKeys = 64, kMostProducts = 8;

void append_key(std::string& key, const Value& value) {
    const auto append = [&](const void* bytes, std::size_t size) { key.append(static_cast<const char*>(bytes), size); };
    if (value.is_text()) {
        key += 't';
        append(&value.size, sizeof value.size);
        append(value.text, value.size);
    } else if (value.is_number()) {
        const Number number = Number::of(value);  // 1 and 1.0 are one
        key += 'n';
        append(&number.nearest, sizeof number.nearest);
        append(&number.rest, sizeof number.rest);
    } else {
        key += value.boolean ? 'y' : 'f';
    }
}

}  // namespace

// Filters of one group with ranges over the same properties.
struct FilterIndex::Bundle {
    explicit Bundle(const std::vector<Range>& like) : boxes(like.size()) {
        for (const Range& range : like) attributes.push_back(range.attribute);
    }
    bool fits(const std::vector<Range>& those) const {
        return std::equal(attributes.begin(), attributes.end(), those.begin(), those.end(),
                          [](std::uint32_t number, const Range& range) { return number == range.attribute; });
    }
    bool empty() const { return line.empty() && boxes.empty(); }

    std::vector<std::uint32_t> attributes;  // in their order
    Ranges line;                            // over one property
    Boxes boxes;                            // over several
};

// Filters whose equalities have the same values.
struct FilterIndex::Group {
    Shape* shape;
    std::string key;
    Ordered<std::uint32_t> plain;  // those without a range
    std::vector<Bundle> bundles;
};

// Groups by the values of the same properties.
struct FilterIndex::Shape {
    std::vector<std::uint32_t> attributes;  // in their order
    ByText<std::unique_ptr<Group>> groups;
};

struct FilterIndex::Plan {
    struct Equality {
        std::uint32_t attribute;
        std::size_t condition;
        std::vector<Value> values;
    };
    std::vector<Equality> equalities;  // by attribute
    std::vector<Range> ranges;         // by attribute
    std::vector<std::size_t> in_range;      // the conditions that these stand for
    std::vector<std::uint32_t> attributes;  // all that were asked for
};

FilterIndex::FilterIndex() : everywhere_(std::make_unique<Shape>()) {}
FilterIndex::~FilterIndex() = default;

// --- names ---

std::uint32_t FilterIndex::attribute(std::string_view name) {
    const auto known = names_.find(name);
    std::uint32_t number;
    if (known != names_.end()) {
        number = known->second;
    } else {
        if (free_attributes_.empty()) {
            free_attributes_.push_back(static_cast<std::uint32_t>(attributes_.size()));
            attributes_.emplace_back();
        }
        number = free_attributes_.back();
        free_attributes_.pop_back();
        attributes_[number].name = name;
        names_.emplace(name, number);
    }
    ++attributes_[number].uses;
    return number;
}

void FilterIndex::release(std::uint32_t number) {
    Attribute& attribute = attributes_[number];
    if (--attribute.uses != 0) return;
    names_.erase(attribute.name);
    attribute = {};
    free_attributes_.push_back(number);
}

// --- where a filter belongs ---

FilterIndex::Plan FilterIndex::plan(const Filter& filter) {
    Plan plan;
    const Code& code = filter.code();
    for (std::size_t i = 0; i < code.conditions.size(); ++i) {
        Simple simple = simplify(code, code.conditions[i]);
        if (simple.kind == Simple::Kind::other) continue;
        const std::uint32_t number = attribute(code.names[simple.name]);
        plan.attributes.push_back(number);
        if (simple.kind == Simple::Kind::equal) {
            const bool known = std::any_of(plan.equalities.begin(), plan.equalities.end(),
                                           [&](const auto& one) { return one.attribute == number; });
            if (known || simple.values.size() > kMostKeys) continue;
            plan.equalities.push_back({number, i, std::move(simple.values)});
            continue;
        }
        const auto known = std::find_if(plan.ranges.begin(), plan.ranges.end(),
                                        [&](const Range& range) { return range.attribute == number; });
        if (known != plan.ranges.end()) {
            known->interval.intersect(simple.interval);
        } else if (plan.ranges.size() == kMostRanges) {
            continue;
        } else {
            plan.ranges.push_back({number, simple.interval});
        }
        plan.in_range.push_back(i);
    }
    // Those with the fewest values first: what an IN adds to them is small, and takes many places.
    std::stable_sort(plan.equalities.begin(), plan.equalities.end(),
                     [](const auto& a, const auto& b) { return a.values.size() < b.values.size(); });
    std::size_t product = 1, kept = 0;
    for (; kept < std::min(plan.equalities.size(), kMostEqualities); ++kept) {
        product *= plan.equalities[kept].values.size();
        if (kept != 0 && product > kMostProducts) break;
    }
    plan.equalities.resize(kept);
    const auto by_attribute = [](const auto& a, const auto& b) { return a.attribute < b.attribute; };
    std::sort(plan.equalities.begin(), plan.equalities.end(), by_attribute);
    std::sort(plan.ranges.begin(), plan.ranges.end(), by_attribute);
    return plan;
}

// Leaves those equalities in the plan that the shape has.
FilterIndex::Shape& FilterIndex::choose_shape(Plan& plan) {
    if (plan.equalities.empty()) return *everywhere_;
    if (plan.equalities.size() > 1) {
        std::vector<std::uint32_t> wanted;
        for (const auto& one : plan.equalities) wanted.push_back(one.attribute);
        for (const auto& shape : together_) {
            if (shape->attributes == wanted) return *shape;
        }
        if (together_.size() < kMostCombinations) {
            together_.push_back(std::make_unique<Shape>());
            together_.back()->attributes = std::move(wanted);
            return *together_.back();
        }
        // The one that has the most values besides this one.
        const auto values = [&](const Plan::Equality& one) {
            const auto& alone = attributes_[one.attribute].alone;
            return alone ? alone->groups.size() : 0;
        };
        const auto best = std::max_element(plan.equalities.begin(), plan.equalities.end(),
                                           [&](const auto& a, const auto& b) { return values(a) < values(b); });
        if (best != plan.equalities.begin()) plan.equalities.front() = std::move(*best);
        plan.equalities.resize(1);
    }
    const std::uint32_t number = plan.equalities.front().attribute;
    Attribute& attribute = attributes_[number];
    if (!attribute.alone) {
        attribute.alone = std::make_unique<Shape>();
        attribute.alone->attributes = {number};
    }
    return *attribute.alone;
}

// One for each combination of values.
std::vector<std::string> FilterIndex::keys(const Plan& plan, const Shape& shape) {
    std::vector<std::string> all(1);
    for (std::size_t i = 0; i < shape.attributes.size(); ++i) {
        std::vector<std::string> longer;
        for (const std::string& key : all) {
            for (const Value& value : plan.equalities[i].values) append_key(longer.emplace_back(key), value);
        }
        all = std::move(longer);
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());  // IN (1, 1.0)
    return all;
}

bool FilterIndex::add(std::uint64_t id, std::shared_ptr<const Filter> filter) {
    if (slots_.contains(id)) return false;
    if (free_members_.empty()) {
        free_members_.push_back(static_cast<std::uint32_t>(members_.size()));
        members_.emplace_back();
    }
    const std::uint32_t slot = free_members_.back();
    free_members_.pop_back();
    slots_.emplace(id, slot);

    Plan plan = this->plan(*filter);
    Shape& shape = choose_shape(plan);
    Member& member = members_[slot];
    const std::size_t count = filter->code().conditions.size();
    std::uint64_t rest = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
    for (const auto& one : plan.equalities) rest &= ~(std::uint64_t{1} << one.condition);
    for (const std::size_t condition : plan.in_range) rest &= ~(std::uint64_t{1} << condition);
    member = {id, std::move(filter), rest, &shape, {}, std::move(plan.ranges)};
    for (const std::string& key : keys(plan, shape)) {
        std::unique_ptr<Group>& group = shape.groups[key];
        if (!group) group = std::make_unique<Group>(Group{&shape, key, {}, {}});
        place(slot, *group);
        member.groups.push_back(group.get());
    }
    // Those that it is found by are used once by each of its places in the index.
    for (const std::uint32_t number : shape.attributes) ++attributes_[number].uses;
    for (const Range& range : member.ranges) ++attributes_[range.attribute].uses;
    for (const std::uint32_t number : plan.attributes) release(number);
    return true;
}

bool FilterIndex::remove(std::uint64_t id) {
    const auto found = slots_.find(id);
    if (found == slots_.end()) return false;
    const std::uint32_t slot = found->second;
    slots_.erase(found);
    Member& member = members_[slot];
    for (Group* group : member.groups) displace(slot, *group);
    const std::vector<std::uint32_t> attributes = member.shape->attributes;
    if (member.shape->groups.empty()) drop_shape(*member.shape);
    for (const std::uint32_t number : attributes) release(number);
    for (const Range& range : member.ranges) release(range.attribute);
    member = {};
    free_members_.push_back(slot);
    return true;
}

void FilterIndex::place(std::uint32_t slot, Group& group) {
    const std::vector<Range>& ranges = members_[slot].ranges;
    if (ranges.empty()) return group.plain.insert(slot);
    auto bundle = std::find_if(group.bundles.begin(), group.bundles.end(),
                               [&](const Bundle& one) { return one.fits(ranges); });
    if (bundle == group.bundles.end()) bundle = group.bundles.emplace(bundle, ranges);
    if (ranges.size() == 1) return bundle->line.insert(ranges[0].interval, slot);
    Boxes::Box box;
    for (std::size_t i = 0; i < ranges.size(); ++i) box[i] = ranges[i].interval;
    bundle->boxes.insert(box, slot);
}

void FilterIndex::displace(std::uint32_t slot, Group& group) {
    const std::vector<Range>& ranges = members_[slot].ranges;
    if (ranges.empty()) {
        group.plain.erase(slot);
    } else {
        const auto bundle = std::find_if(group.bundles.begin(), group.bundles.end(),
                                         [&](const Bundle& one) { return one.fits(ranges); });
        if (ranges.size() == 1) {
            bundle->line.erase(ranges[0].interval, slot);
        } else {
            bundle->boxes.erase(slot);
        }
        if (bundle->empty()) group.bundles.erase(bundle);
    }
    if (group.plain.empty() && group.bundles.empty()) {
        const std::string key = std::move(group.key);
        group.shape->groups.erase(key);
    }
}

void FilterIndex::drop_shape(Shape& shape) {
    if (&shape == everywhere_.get()) return;
    if (shape.attributes.size() == 1) {
        attributes_[shape.attributes.front()].alone.reset();
        return;
    }
    std::erase_if(together_, [&](const auto& one) { return one.get() == &shape; });
}

// --- an event ---

void FilterIndex::match(const Properties& properties, std::vector<std::uint64_t>& ids) {
    properties_ = &properties;
    found_ = &ids;
    note(properties);
    for (const std::uint32_t number : present_) {
        if (const auto& alone = attributes_[number].alone) look_in(*alone);
    }
    for (const auto& shape : together_) look_in(*shape);
    look_in(*everywhere_);
}

// What the event says of the names that filters have.
void FilterIndex::note(const Properties& properties) {
    if (++event_ == 0) {  // all numbers were used: nothing that was noted is to be taken for this one's
        for (Attribute& attribute : attributes_) attribute.event = 0;
        event_ = 1;
    }
    present_.clear();
    for (const auto& [name, value] : properties) {
        if (value.is_null()) continue;
        const auto known = names_.find(name);
        if (known == names_.end()) continue;
        Attribute& attribute = attributes_[known->second];
        attribute.event = event_;
        attribute.value = value;
        present_.push_back(known->second);
    }
}

void FilterIndex::look_in(const Shape& shape) {
    key_.clear();
    for (const std::uint32_t number : shape.attributes) {
        const Attribute& attribute = attributes_[number];
        if (attribute.event != event_) return;
        append_key(key_, attribute.value);
    }
    const auto group = shape.groups.find(std::string_view(key_));
    if (group != shape.groups.end()) look_in(*group->second);
}

void FilterIndex::look_in(const Group& group) {
    group.plain.each(0, [&](std::uint32_t slot) {
        candidate(slot);
        return true;
    });
    for (const Bundle& bundle : group.bundles) look_in(bundle);
}

void FilterIndex::look_in(const Bundle& bundle) {
    Boxes::Point point;
    for (std::size_t i = 0; i < bundle.attributes.size(); ++i) {
        const Attribute& attribute = attributes_[bundle.attributes[i]];
        if (attribute.event != event_ || !attribute.value.is_number()) return;
        point[i] = Edge::of(Number::of(attribute.value));
    }
    bundle.line.each(point[0], [&](std::uint32_t slot) { candidate(slot); });
    bundle.boxes.each(point, [&](std::uint32_t slot) { candidate(slot); });
}

// All of it that was looked up is true.
void FilterIndex::candidate(std::uint32_t slot) {
    const Member& member = members_[slot];
    for (std::uint64_t left = member.rest; left != 0; left &= left - 1) {
        if (!member.filter->holds(static_cast<std::size_t>(__builtin_ctzll(left)), *properties_)) return;
    }
    found_->push_back(member.id);
}

}  // namespace antiphon::match
