// A place in a chart, moved by pointer or keyboard, and spoken as a slider's value.

/**
 * Make an element a slider over the positions of a chart.
 *
 * `move(index)` shows the place and returns what is there as text; `open(index)`, where given, is called by Enter or a
 * click. `at(clientX)` says which position is at a horizontal place of the screen, or null.
 */
export function cursorOver(element, { label, at, move, open }) {
  let length = 0;
  let index = -1;
  let isAtEnd = true;
  element.tabIndex = 0;
  element.setAttribute("role", "slider");
  element.setAttribute("aria-label", label);
  element.setAttribute("aria-valuemin", "0");

  function show(wanted) {
    if (length === 0) return;
    index = Math.max(0, Math.min(length - 1, wanted));
    isAtEnd = index === length - 1;
    element.setAttribute("aria-valuenow", String(index));
    element.setAttribute("aria-valuetext", move(index));
  }

  const page = () => Math.max(2, Math.round(length / 10));
  const steps = {
    ArrowLeft: () => index - 1,
    ArrowDown: () => index - 1,
    ArrowRight: () => index + 1,
    ArrowUp: () => index + 1,
    PageDown: () => index - page(),
    PageUp: () => index + page(),
    Home: () => 0,
    End: () => length - 1,
  };
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) show(steps[event.key]());
    else if (event.key === "Enter" && open && index >= 0) open(index);
    else return;
    event.preventDefault();
  });
  element.addEventListener("pointermove", (event) => {
    const wanted = at(event.clientX);
    if (wanted !== null && wanted !== index) show(wanted);
  });
  if (open) {
    element.addEventListener("click", (event) => {
      const wanted = at(event.clientX);
      if (wanted !== null) open(Math.max(0, Math.min(length - 1, wanted)));
    });
  }
  return {
    /** Tell how many positions there are now; the cursor stays, or follows the end if it was there. */
    resize(newLength, stayAt = index) {
      length = newLength;
      element.setAttribute("aria-valuemax", String(Math.max(0, length - 1)));
      if (length === 0) {
        index = -1;
        element.setAttribute("aria-valuenow", "0");
        element.setAttribute("aria-valuetext", "nothing yet");
      } else {
        show(isAtEnd || stayAt < 0 ? length - 1 : stayAt);
      }
    },
    show,
    get index() {
      return index;
    },
    get isAtEnd() {
      return isAtEnd;
    },
  };
}
