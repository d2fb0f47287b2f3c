// The page for readers who have no key, or who are not allowed to see the whole app.

import { Component, createRef, html } from "../html.js";
import { key, signIn } from "../model/key.js";

const HEADER_TEXT = /^[\x21-\x7e]+$/;

export class SignIn extends Component {
  field = createRef();
  state = { wrong: null };

  componentDidMount() {
    this.field.current?.focus();
  }

  submit(event) {
    event.preventDefault();
    const text = this.field.current.value.trim();
    if (HEADER_TEXT.test(text)) signIn(text);
    else this.setState({ wrong: "A key consists of plain letters, digits and symbols, without spaces." });
  }

  render({ status, reason }, { wrong }) {
    const refused = wrong ?? (status === 403 || key.value ? reason : null);
    return html`<form class="panel sign-in" onSubmit=${(event) => this.submit(event)}>
      <h2>This app requires a key</h2>
      <label for="key">Key or token with the grant <code>consume:*</code> or <code>admin</code></label>
      <div class="row">
        <input id="key" type="password" ref=${this.field} autocomplete="off" spellcheck=${false} required />
        <button type="submit">Sign in</button>
      </div>
      ${refused ? html`<p class="failure" role="alert">${refused}</p>` : null}
      <p class="quiet">It is kept in this tab until you close it. To create one, run this on the app's machine:</p>
      <pre>penstock keys add NAME 'consume:*'</pre>
    </form>`;
  }
}
