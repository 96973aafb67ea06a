#ifndef TESSERA_CONVERT_PICKLE_WRITE_H_
#define TESSERA_CONVERT_PICKLE_WRITE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::ckpt::pickle {

// Writes a pickle of protocol 2, which every version of Python 3 and of torch reads, unless calls
// say otherwise. Each call appends one object; a container gets the objects between its Begin and
// End calls. The caller must nest the calls correctly, which is not checked.
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
  // Returns the writer, for the value of a dict's key or an object's field.
  Writer& Text(std::string_view utf8);
  void Bytes(std::string_view bytes);
  // Appends bytes as protocol 4 does, less their contents, which the caller puts here: by Raw(), or
  // in a file after what Take() returns.
  void BeginBytes(uint64_t size_bytes);
  void Raw(std::string_view contents) { bytes_ += contents; }
  void Global(std::string_view module, std::string_view name);

  // Begins a dict; append keys and values in turn.
  void BeginDict() { bytes_ += "}("; }
  void EndDict() { bytes_ += 'u'; }
  void BeginList() { bytes_ += "]("; }
  void EndList() { bytes_ += 'e'; }
  void BeginTuple() { bytes_ += '('; }
  void EndTuple() { bytes_ += 't'; }
  void IntTuple(const std::vector<int64_t>& values);

  // Replaces a global and a tuple of arguments by the result of the call.
  void Call() { bytes_ += 'R'; }
  // Replaces a global by an object of that class. A state, and then SetState(), may follow.
  void NewObject() { bytes_ += ")\x81"; }
  void SetState() { bytes_ += 'b'; }
  // Begins an object of a class; append names and values of its fields in turn.
  void BeginObject(std::string_view module, std::string_view name);
  void EndObject();
  // Replaces the persistent id on the stack by the object that the loading program keeps under it.
  void PersistentId() { bytes_ += 'Q'; }

  // Gives the last object a number, under which Recall() appends it again.
  void Memoize(uint32_t number);
  void Recall(uint32_t number);

  // Returns what was written since the last call, for pickles with contents from elsewhere.
  std::string Take() { return std::exchange(bytes_, {}); }
  void End() { bytes_ += '.'; }  // of a pickle whose last part Take() returns
  std::string Finish() && { return std::move(bytes_ += '.'); }

 private:
  std::string bytes_;
};

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_WRITE_H_
