#include "base/parse_cost.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

namespace tessera {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// The parser's own limit: it refuses deeper nesting.
constexpr int kMaxDepth = 100;

// Overhead of the library and the allocator, rounded up.
constexpr uint64_t kAllocation = 16;               // per allocation
constexpr uint64_t kString = 32 + kAllocation;     // without the characters
constexpr uint64_t kPointer = 16;                  // in an array that grows by doubling
constexpr uint64_t kArray = 8 + kAllocation + 16;  // without the elements
constexpr uint64_t kMap = 256;                     // without the entries
constexpr uint64_t kMapEntry = 128;                // without what strings take
constexpr uint64_t kUnknownFields = 64;            // per message that has any
constexpr uint64_t kUnknownField = 32;             // in an array that grows by doubling
constexpr uint64_t kUnknownGroup = kUnknownField + 24 + kAllocation;

// The properties of a message type that counting needs, by field number.
struct Type {
  struct Field {
    const FieldDescriptor* descriptor = nullptr;
    const Type* message = nullptr;
    uint64_t element_bytes = 0;  // size of a number
    int wire_type = 0;           // wire type of one element
  };
  uint64_t bytes = 0;
  std::vector<Field> fields;

  const Field* Find(uint64_t number) const {
    if (number >= fields.size() || fields[number].descriptor == nullptr) return nullptr;
    return &fields[number];
  }
};

constexpr int kVarint = 0, kFixed64 = 1, kDelimited = 2, kGroup = 3, kEndGroup = 4, kFixed32 = 5;

uint64_t ElementBytes(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return 8;
    case FieldDescriptor::CPPTYPE_BOOL:
      return 1;
    default:
      return 4;
  }
}

int WireTypeOf(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
      return kFixed64;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
      return kFixed32;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE:
      return kDelimited;
    default:
      return kVarint;
  }
}

class Types {
 public:
  explicit Types(const Descriptor& root) { root_ = Add(root); }
  const Type& root() const { return *root_; }

 private:
  const Type* Add(const Descriptor& descriptor) {
    const auto [at, is_new] = types_.try_emplace(&descriptor);
    Type& type = at->second;
    if (!is_new) return &type;
    if (descriptor.map_key() == nullptr) {  // entries of maps are not messages in memory
      type.bytes = google::protobuf::MessageFactory::generated_factory()
                       ->GetPrototype(&descriptor)
                       ->SpaceUsedLong() +
                   kAllocation;
    }
    for (int f = 0; f < descriptor.field_count(); ++f) {
      const FieldDescriptor& field = *descriptor.field(f);
      type.fields.resize(std::max<size_t>(type.fields.size(), field.number() + 1));
      Type::Field entry = {&field, nullptr, ElementBytes(field), WireTypeOf(field)};
      if (field.message_type() != nullptr) entry.message = Add(*field.message_type());
      type.fields[field.number()] = entry;
    }
    return &type;
  }

  std::map<const Descriptor*, Type> types_;
  const Type* root_;
};

class Counter {
 public:
  Counter(std::string_view payload, uint64_t limit)
      : at_(payload.data()), end_(payload.data() + payload.size()), limit_(limit) {}

  uint64_t cost() const { return cost_; }

  // Counts a message up to `end` or, if that is null, a group of unknown fields up to its end.
  // Returns false when counting must stop.
  bool Message(const Type* type, const char* end, int depth) {
    if (depth > kMaxDepth) return false;
    const char* const outer_end = end_;
    if (end != nullptr) end_ = end;
    uint64_t seen = 0;  // fields of a number below 63; the last bit: unknown ones
    while (cost_ <= limit_) {
      if (at_ == end_) {
        end_ = outer_end;
        return end != nullptr;  // a group needs an end tag
      }
      // Like the parser, drops the bits beyond 32.
      const std::optional<uint64_t> wide_tag = Varint();
      if (!wide_tag) return false;
      const auto tag = static_cast<uint32_t>(*wide_tag);
      if (tag >> 3 == 0) return false;
      if ((tag & 7) == kEndGroup) return end == nullptr;
      if (!Field(type, tag >> 3, static_cast<int>(tag & 7), seen, depth)) return false;
    }
    return false;
  }

 private:
  std::optional<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && at_ != end_; shift += 7) {
      const auto byte = static_cast<uint8_t>(*at_++);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  bool Skip(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - at_)) return false;
    at_ += bytes;
    return true;
  }

  bool Field(const Type* type, uint64_t number, int wire_type, uint64_t& seen, int depth) {
    const Type::Field* const field = type == nullptr ? nullptr : type->Find(number);
    const bool is_packed =
        field != nullptr && wire_type == kDelimited && field->descriptor->is_packable();
    if (field == nullptr || (wire_type != field->wire_type && !is_packed)) {
      return Unknown(wire_type, First(63, seen), depth);
    }
    const bool is_first = First(std::min<uint64_t>(number, 62), seen);
    if (wire_type == kDelimited) return Delimited(*field, is_packed, is_first, depth);
    if (field->descriptor->is_repeated()) {
      cost_ += 2 * field->element_bytes + (is_first ? kArray : 0);
    }
    return Number(wire_type);
  }

  static bool First(uint64_t bit, uint64_t& seen) {
    const bool is_first = (seen >> bit & 1) == 0;
    seen |= uint64_t{1} << bit;
    return is_first;
  }

  bool Number(int wire_type) {
    if (wire_type == kVarint) return Varint().has_value();
    return Skip(wire_type == kFixed64 ? 8 : 4);
  }

  bool Delimited(const Type::Field& field, bool is_packed, bool is_first, int depth) {
    const std::optional<uint64_t> size = Varint();
    if (!size || *size > static_cast<uint64_t>(end_ - at_)) return false;
    if (is_packed) {
      cost_ += std::bit_ceil(Elements(field, *size)) * field.element_bytes + kArray;
      return Skip(*size);
    }
    if (field.message == nullptr) {
      cost_ += kString + *size + (field.descriptor->is_repeated() ? kPointer : 0);
      return Skip(*size);
    }
    if (field.descriptor->is_map()) {
      // An entry has its strings even where they are absent on the wire.
      cost_ += kMapEntry + 2 * kString + (is_first ? kMap : 0);
    } else if (field.descriptor->is_repeated()) {
      cost_ += field.message->bytes + kPointer;
    } else if (is_first) {
      cost_ += field.message->bytes;
    }
    return Message(field.message, at_ + *size, depth + 1);
  }

  // Counts varints by their ends, the only bytes below 0x80.
  uint64_t Elements(const Type::Field& field, uint64_t size) const {
    if (field.wire_type != kVarint) return size / field.element_bytes;
    return std::count_if(at_, at_ + size, [](char c) { return static_cast<int8_t>(c) >= 0; });
  }

  bool Unknown(int wire_type, bool is_first, int depth) {
    cost_ += kUnknownField + (is_first ? kUnknownFields : 0);
    if (wire_type == kGroup) {
      cost_ += kUnknownGroup;
      return Message(nullptr, nullptr, depth + 1);
    }
    if (wire_type == kDelimited) {
      const std::optional<uint64_t> size = Varint();
      if (!size) return false;
      cost_ += kString + std::min<uint64_t>(*size, end_ - at_);
      return Skip(*size);
    }
    return wire_type <= kFixed32 && Number(wire_type);
  }

  const char* at_;
  const char* end_;
  const uint64_t limit_;
  uint64_t cost_ = 0;
};

}  // namespace

std::optional<uint64_t> ParseCost(const Descriptor& type, std::string_view payload,
                                  uint64_t limit) {
  const Types types(type);
  Counter counter(payload, limit);
  const bool is_whole = counter.Message(&types.root(), payload.data() + payload.size(), 0);
  if (!is_whole && counter.cost() <= limit) return std::nullopt;
  return counter.cost();
}

}  // namespace tessera
