#ifndef TESSERA_CONVERT_PICKLE_WRITE_H_
#define TESSERA_CONVERT_PICKLE_WRITE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::ckpt::pickle {

// Writes a pickle of protocol 2, which every version of Python 3 and of torch reads. Each call
// appends what makes one object; containers take theirs between a Begin and an End call. The
// caller nests the calls correctly: this class does not check.
//
//   Writer writer;
//   writer.BeginDict();
//   writer.Text("step");
//   writer.Int(7);
//   writer.EndDict();
//   std::string pickle = std::move(writer).Finish();
class Writer {
 public:
  Writer() : bytes_("\x80\x02") {}

  void None() { bytes_ += 'N'; }
  void Bool(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void Int(int64_t value);
  void Float(double value);
  void Text(std::string_view utf8);
  void Bytes(std::string_view bytes);
  void Global(std::string_view module, std::string_view name);

  // Keys and values in turn.
  void BeginDict() { bytes_ += "}("; }
  void EndDict() { bytes_ += 'u'; }
  void BeginList() { bytes_ += "]("; }
  void EndList() { bytes_ += 'e'; }
  void BeginTuple() { bytes_ += '('; }
  void EndTuple() { bytes_ += 't'; }
  void IntTuple(const std::vector<int64_t>& values);

  // After a global and a tuple of arguments: the result of the call.
  void Call() { bytes_ += 'R'; }
  // After a global: an object of that class. A state, and then SetState(), may follow.
  void NewObject() { bytes_ += ")\x81"; }
  void SetState() { bytes_ += 'b'; }
  // After an object: what the program that loads the pickle has under it as its persistent id.
  void PersistentId() { bytes_ += 'Q'; }

  std::string Finish() && { return std::move(bytes_ += '.'); }

 private:
  std::string bytes_;
};

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_WRITE_H_
