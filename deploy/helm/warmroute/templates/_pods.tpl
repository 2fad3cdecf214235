{{/* Where pods run, and whose images they may pull. */}}
{{- define "warmroute.placed" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Keeps proxies apart, and pickers. */}}
{{- define "warmroute.spread" -}}
{{- if .Values.topologySpread.enabled }}
topologySpreadConstraints:
  {{- range list .Values.topologySpread.topologyKey "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "warmroute.selector" $ | nindent 8 }}
        app.kubernetes.io/component: {{ if $.Picker }}picker{{ else }}proxy{{ end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The environment of a proxy's, picker's or migration's container. */}}
{{- define "warmroute.env" -}}
{{- $secrets := .Values.secrets }}
{{- if or $secrets.ca.name $secrets.adminKey.name .Values.extraEnv }}
env:
  {{- if $secrets.ca.name }}
  - {name: SSL_CERT_FILE, value: /etc/warmroute-secrets/ca/ca.crt}
  {{- end }}
  {{- if $secrets.adminKey.name }}
  # For `kubectl exec ... warmroute engines` and its like.
  - name: WARMROUTE_ADMIN_KEY
    valueFrom: {secretKeyRef: {name: {{ $secrets.adminKey.name | quote }}, key: {{ $secrets.adminKey.key | quote }}, optional: true}}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The volume of a proxy or picker. */}}
{{- define "warmroute.claims" -}}
- metadata:
    name: state
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .Values.persistence.storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .Values.persistence.size }}}}
{{- end }}

{{/* Where proxies and pickers may connect to. */}}
{{- define "warmroute.egress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
# Engines: HTTP, KV events and their replay, bootstrap of prefill.
- ports: [{port: 30000, endPort: 32767}, {port: 5557, endPort: 5756}, {port: 8998, endPort: 9098}]
# Other proxies, other regions, the API server.
- ports: [{port: 8000}, {port: 443}, {port: 6443}]
{{- if .Values.gateway.enabled }}
- ports: [{port: {{ .Values.gateway.enginePort }}}]
{{- end }}
{{- if .Values.secrets.ledgerDsn.name }}
- ports: [{port: 5432}]
{{- end }}
{{- if .Values.secrets.redisUrl.name }}
- ports: [{port: 6379}]
{{- end }}
{{- if .Values.tracing.endpoint }}
- ports: [{port: 4317}, {port: 4318}]
{{- end }}
{{- with .Values.networkPolicy.egress }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
