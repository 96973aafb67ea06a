// ThreadSanitizer calls this where a program is built with it.
//
// oneDNN is not built with it and keeps created products in a process-wide cache whose locks
// ThreadSanitizer cannot see. So it would report races of backends on several threads, when they
// create equal products and when they first use that cache.
//
// Open MPI's transports, mca_btl_tcp and mca_btl_vader, take their locks in more than one order.
extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() {
  return "race:tessera::GemmCache::Get\n"
         "race:tessera::GemmCache::GemmCache\n"
         "deadlock:mca_btl_\n";
}
