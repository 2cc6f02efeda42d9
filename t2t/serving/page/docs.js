// The examples of the API's description get the address at which it was opened.

const server = new URL("./", location.href);
server.hash = "";
for (const example of document.querySelectorAll("pre")) {
  example.textContent = example.textContent.replaceAll("http://127.0.0.1:8000/", server.href);
}
