#ifndef TESSERA_TOOLS_CKPT_INSPECT_HTML_H_
#define TESSERA_TOOLS_CKPT_INSPECT_HTML_H_

#include <string>

#include "convert/operations/named_checkpoint.h"
#include "tools/ckpt/commands.h"

namespace tessera::ckpt {

// Reads a checkpoint whole and writes the page options.html about it, compared with options.other
// if that is a name. `head` is what `ckpt inspect` prints of it before the tensors: lines of a
// label of twelve characters and a text, or of more of the text before, indented. Returns the exit
// code.
int WriteInspectPage(const NamedCheckpoint& named, const std::string& head,
                     const CommandOptions& options, const CommandOutput& output);

}  // namespace tessera::ckpt

#endif  // TESSERA_TOOLS_CKPT_INSPECT_HTML_H_
