# llama.cpp and ggml, built from their own top level as a static part of this build, with ggml's own
# thread pool (no OpenMP): core/parallel.h runs Winnow's loops on the same threads.
if(NOT EXISTS ${WINNOW_LLAMA_DIR}/CMakeLists.txt)
  message(FATAL_ERROR "llama.cpp sources are missing from ${WINNOW_LLAMA_DIR}: run `make deps`")
endif()

set(BUILD_SHARED_LIBS OFF)
set(LLAMA_ALL_WARNINGS OFF CACHE BOOL "" FORCE)
set(GGML_OPENMP OFF CACHE BOOL "" FORCE)
set(GGML_NATIVE ${WINNOW_NATIVE} CACHE BOOL "" FORCE)
set(LLAMA_BUILD_COMMON ON CACHE BOOL "" FORCE)
set(LLAMA_OPENSSL OFF CACHE BOOL "" FORCE)
foreach(part TESTS TOOLS EXAMPLES SERVER APP)
  set(LLAMA_BUILD_${part} OFF CACHE BOOL "" FORCE)
endforeach()
# llama.cpp would ask git for its commit, and in here get Winnow's: "0" stands for "there is no git".
set(GIT_EXE 0 CACHE STRING "" FORCE)
set(GIT_EXECUTABLE 0 CACHE STRING "" FORCE)
add_subdirectory(${WINNOW_LLAMA_DIR} ${CMAKE_BINARY_DIR}/llama.cpp EXCLUDE_FROM_ALL)

# Of llama.cpp's common library we use chat templates alone, where speed is no matter; what no
# program of ours links (downloads, argument parsing) would take longer to compile than all of ggml.
get_target_property(common_sources llama-common SOURCES)
list(FILTER common_sources EXCLUDE REGEX
  "^(arg|console|debug|download|hf-cache|imatrix-loader|llguidance|preset|subproc)\\.cpp$")
set_target_properties(llama-common PROPERTIES SOURCES "${common_sources}")
foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
  get_target_property(libraries llama-common ${property})
  list(FILTER libraries EXCLUDE REGEX "cpp-httplib")
  set_target_properties(llama-common PROPERTIES ${property} "${libraries}")
endforeach()
target_compile_options(llama-common PRIVATE -O1)
