# winnow_library(NAME SOURCES ... DEPS ... [TESTS ...] [TEST_DEPS ...])
#   One folder, one library. Tests lie beside what they test and are run by ctest, one entry per
#   test binary (a binary shares what is expensive to load, such as the default model).

add_library(winnow_options INTERFACE)
target_compile_options(winnow_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
target_include_directories(winnow_options INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
if(WINNOW_SANITIZE)
  target_compile_options(winnow_options INTERFACE -fsanitize=${WINNOW_SANITIZE}
    -g1 -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # Sanitized SIMD kernels take minutes to compile for each instruction set: only this processor's.
  # The rest compiles twice as fast with few optimisations, and runs nearly as fast.
  target_compile_options(winnow_options INTERFACE -march=native -Wno-maybe-uninitialized -O1)
  target_compile_definitions(winnow_options INTERFACE HWY_COMPILE_ONLY_STATIC)
  target_link_options(winnow_options INTERFACE -fsanitize=${WINNOW_SANITIZE})
endif()

function(winnow_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;TESTS;TEST_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  if(WINNOW_SANITIZE)
    set(kernels ${ARG_SOURCES})
    list(FILTER kernels INCLUDE REGEX "_cpu\\.cc$")
    if(kernels)
      set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS -O3)
    endif()
  endif()
  target_link_libraries(${name} PUBLIC winnow_options ${ARG_DEPS})
  if(WINNOW_TESTS)
    foreach(test_source ${ARG_TESTS})
      get_filename_component(test_name ${test_source} NAME_WE)
      add_executable(${test_name} ${test_source})
      target_link_libraries(${test_name} PRIVATE ${name} ${ARG_TEST_DEPS} GTest::gmock
                                                 GTest::gtest GTest::gtest_main)
      # What is tested is optimised; the tests themselves only have to compile.
      target_compile_options(${test_name} PRIVATE -O1)
      add_test(NAME ${test_name} COMMAND ${test_name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(${test_name} PROPERTIES TIMEOUT 1200)
    endforeach()
  endif()
endfunction()
