#ifndef TESSERA_TRAINER_CONFIG_FLAGS_H_
#define TESSERA_TRAINER_CONFIG_FLAGS_H_

// A command line for any protobuf message of groups: the message has one sub-message per group,
// which has fields of int64, double, bool, string and enums, whose names are unique over all
// groups. A field `num_layers` is the flag --num-layers or --num_layers, as `--num-layers 12` or
// `--num-layers=12`; a boolean is also set by its bare name. Enum values are accepted in any case.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace tessera {

// A scalar or enum field of one of a message's groups.
struct Setting {
  const google::protobuf::FieldDescriptor* group = nullptr;
  const google::protobuf::FieldDescriptor* field = nullptr;

  const std::string& name() const { return field->name(); }
  const google::protobuf::Message& in(const google::protobuf::Message& message) const {
    return message.GetReflection()->GetMessage(message, group);
  }
  bool is_given(const google::protobuf::Message& message) const {
    return in(message).GetReflection()->HasField(in(message), field);
  }
  void Clear(google::protobuf::Message* message) const;
  // Returns false if `value` is not of the field's type.
  bool Set(const std::string& value, google::protobuf::Message* message) const;
};
std::vector<Setting> AllSettings(const google::protobuf::Descriptor& message);

// Applies the flags to `message`; the last one wins. `given`, which may be null, gets each flag as
// it was given, "--lr=1e-3", by the name of its field. InvalidArgument: an unknown flag, with the
// nearest name; a value that does not parse, with flag, value and the expected kind; a flag with
// different values under two names, with both names.
absl::Status ApplyFlags(std::span<const std::string> arguments, google::protobuf::Message* message,
                        std::map<std::string, std::string>* given = nullptr);

// Appends one entry per flag of a group (all groups if it is empty), under the group's name: flag,
// placeholder of its value, help, [default]; wrapped at 100 columns. InvalidArgument if there is no
// such group.
absl::Status FlagHelp(const google::protobuf::Message& message, std::string_view group,
                      std::string* help);

// Returns one line "group --flag <kind> = default, also --alias, needs settings" per flag, for a
// test that freezes the command line.
std::vector<std::string> FlagInventory(const google::protobuf::Message& message);

// Returns the value of a field of a group as ApplyFlags() reads it, in the shortest form that reads
// back to the same bits.
std::string FieldText(const google::protobuf::Message& group,
                      const google::protobuf::FieldDescriptor& field);
// Returns the other names of a field.
std::vector<std::string> Aliases(const google::protobuf::FieldDescriptor& field);
// Returns the default that `(default_text)` or `[default = ]` states.
std::string DefaultText(const google::protobuf::FieldDescriptor& field);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_FLAGS_H_
