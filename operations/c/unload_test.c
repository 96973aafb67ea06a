/* A host of plugins, one of which has the library: it loads, uses and unloads it, and does so again
 * later. The functions of the library's own libraries must not meet what is gone. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "checkpoint/c/tessera_checkpoint.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (int run = 0; run < 2; ++run) {
    void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    int32_t (*open_folder)(const char*, int32_t, const char*, tessera_folder**) = NULL;
    void (*free_folder)(tessera_folder*) = NULL;
    *(void**)&open_folder = dlsym(library, "tessera_folder_open");
    *(void**)&free_folder = dlsym(library, "tessera_folder_free");
    tessera_folder* folder = NULL;
    const int32_t code = open_folder(getenv("TEST_TMPDIR"), TESSERA_CREATE, "", &folder);
    if (code != TESSERA_OK) return printf("run %d: %d\n", run, code), 1;
    free_folder(folder);
    if (dlclose(library) != 0) return printf("%s\n", dlerror()), 1;
  }
  return 0;
}
